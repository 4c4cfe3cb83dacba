// The program `capstan-conformance`: `capstan plugins check`, which needs the conformance kit. `capstan` starts it.

#include <cstdio>
#include <variant>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "core/errors.hpp"

namespace capstan::cli {
namespace {

struct Run {
  int operator()(const PluginsCheckArguments& arguments) const { return plugins_check(arguments); }
  template <class T>
  int operator()(const T&) const {
    throw RuntimeFault("capstan-conformance runs 'plugins check' only. Start it as 'capstan'.");
  }
};

int run(int argc, char** argv) {
  const CommandLine line = read_command_line(argc, argv);
  if (line.arguments) return run_command([&] { return std::visit(Run{}, *line.arguments); });
  std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
  return line.exit_code;
}

}  // namespace
}  // namespace capstan::cli

int main(int argc, char** argv) { return capstan::cli::run(argc, argv); }

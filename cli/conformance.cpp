// The program `capstan-conformance`: `capstan plugins check`, which needs the conformance kit. `capstan` starts it.

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "cli/run_program.hpp"
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

}  // namespace
}  // namespace capstan::cli

int main(int argc, char** argv) { return capstan::cli::run_program(argc, argv, capstan::cli::Run{}); }

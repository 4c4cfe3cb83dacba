#pragma once

#include <cstdio>
#include <variant>

#include "cli/command_line.hpp"
#include "cli/program.hpp"

namespace capstan::cli {

/// Reads the command line and gives its arguments to `run`, which has an overload for each command of the program.
/// Returns the exit code.
template <class Run>
int run_program(int argc, char** argv, const Run& run) {
  const CommandLine line = read_command_line(argc, argv);
  if (line.arguments) return run_command([&] { return std::visit(run, *line.arguments); });
  std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
  return line.exit_code;
}

}  // namespace capstan::cli

#pragma once

#include <optional>
#include <string>

#include "cli/arguments.hpp"

namespace capstan::cli {

/// What a command line asks for: a command's arguments, or a text and the code to exit with (help, version, misuse).
struct CommandLine {
  std::optional<Arguments> arguments;
  std::string text;
  int exit_code = 0;  // other than 0: the text belongs on standard error
};

/// The one definition of the command line; all programs read theirs through it. Never throws, prints or exits.
CommandLine read_command_line(int argc, const char* const* argv);

}  // namespace capstan::cli

#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::cli {

/// The folder above the one that this program lies in: <prefix> of <prefix>/bin/capstan and
/// <prefix>/libexec/capstan-engine. The build folder has the same layout.
std::filesystem::path install_prefix();

/// The words to execute: a program where the first names a file, otherwise a command of this program.
std::vector<std::string> words_of(const std::vector<std::string>& command);

/// Runs a command, reports what it throws as one message on standard error, unless another process prints that, and
/// gives the exit code of its type.
int run_command(const std::function<int()>& command);

/// From here on std::terminate ends the process as run_command() does where memory is the reason: what a library's
/// initialisation or a thread throws reaches no run_command(). May be called before the libraries are initialised.
void end_orderly_without_memory() noexcept;

/// Writes to standard output. Throws RuntimeFault when that is not possible, a full disk for instance.
void print(std::string_view text);

}  // namespace capstan::cli

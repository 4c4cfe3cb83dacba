#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

/// Functions that the commands which write files of tokens share.
namespace capstan::cli {

inline const std::string kNothingWritten = "interrupted; nothing was written";

/// The files that `out` means in a format: NAME.bin and NAME.idx of NAME for "indexed".
std::vector<std::filesystem::path> result_files(const std::string& out, const std::string& format);

/// Throws UsageError where a result is one of the inputs.
void refuse_inputs_as_results(const std::vector<std::filesystem::path>& results,
                              const std::vector<std::string>& inputs);

/// Removes what tells about older tokens at the places of the results: records, and the loss mask and the rows of an
/// index. Throws RuntimeFault.
void remove_records(const std::vector<std::filesystem::path>& results);

/// Throws UsageError where a regular file is at the place of a result. A device or a pipe is not replaced.
void refuse_to_replace(const std::vector<std::filesystem::path>& results);

/// Runs a command's work, in which SIGINT and SIGTERM make check_interrupts() throw, and returns the exit code. An
/// interrupt logs `left`, as it is then, and an sdk::Error is thrown as RuntimeFault.
int run_interruptible(const std::function<void()>& work, const std::string& left = kNothingWritten);
void check_interrupts();
/// Whether SIGINT or SIGTERM has come.
bool is_interrupted();

}  // namespace capstan::cli

#include "cli/program.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/shared_failure.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kOutOfMemory =
    "out of memory, or of what 'ulimit' lets this process have. A smaller train_micro_batch_size_per_gpu, sequence or "
    "model needs less, and so does a higher zero_optimization.stage with several processes; offload_optimizer and "
    "offload_param keep on a disk what does not fit. 'capstan plan' tells how much.";

/// Whether the exception that is being handled says that there is no memory, or no thread, to be had.
bool lacks_memory() noexcept {
  if (!std::current_exception()) return false;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const std::system_error& error) {
    return error.code() == std::errc::resource_unavailable_try_again || error.code() == std::errc::not_enough_memory;
  } catch (const std::exception& error) {
    // LibTorch's own, which is no std::bad_alloc, and what comes out of a plugin as a text. LibTorch puts its texts
    // together when they are asked for, and says so where there is no memory for that.
    return std::strstr(error.what(), "DefaultCPUAllocator") != nullptr ||
           std::strstr(error.what(), "Error computing Error::what()") != nullptr ||
           std::strstr(error.what(), "std::bad_alloc") != nullptr;
  } catch (...) {
    return false;
  }
}

/// Returns the message for an exception that is being handled and says that the host or a device has no memory left;
/// empty for any other exception.
std::string memory_fault(const std::exception& error) {
  if (lacks_memory()) return kOutOfMemory;
  const std::string_view text = error.what();
  if (text.find("out of memory") == std::string_view::npos) return "";
  return std::string(text.substr(0, text.find('\n'))) +
         "\n  A smaller train_micro_batch_size_per_gpu, sequence or model needs less, and so do "
         "activation_checkpointing "
         "and, with several processes, a higher zero_optimization.stage; offload_optimizer and offload_param keep in "
         "host memory or on a disk what does not fit. 'capstan plan' tells how much.";
}

std::terminate_handler terminate_otherwise = nullptr;

[[noreturn]] void at_terminate() {
  if (!lacks_memory()) {
    terminate_otherwise();
    std::abort();
  }
  // Without the log, which may not be there yet, and which needs memory.
  for (const std::string_view part :
       {std::string_view("capstan: error: "), std::string_view(kOutOfMemory), std::string_view("\n")}) {
    if (write(STDERR_FILENO, part.data(), part.size()) < 0) break;
  }
  _exit(static_cast<int>(ExitCode::kFailure));
}

int failed(ExitCode code, std::string_view message) {
  if (!failure_is_left_to_another()) log::error(message);
  return static_cast<int>(code);
}

}  // namespace

std::filesystem::path install_prefix() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

std::vector<std::string> words_of(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  if (words.front().find('/') == std::string::npos) {
    words.insert(words.begin(), (install_prefix() / "bin/capstan").string());
  }
  return words;
}

int run_command(const std::function<int()>& command) {
  try {
    return command();
  } catch (const UsageError& error) {
    return failed(ExitCode::kUsage, error.what());
  } catch (const ConfigError& error) {
    return failed(ExitCode::kConfig, error.what());
  } catch (const PluginError& error) {
    if (const std::string fault = memory_fault(error); !fault.empty()) return failed(ExitCode::kFailure, fault);
    return failed(ExitCode::kPlugin, error.what());
  } catch (const RuntimeFault& error) {
    return failed(ExitCode::kFailure, error.what());
  } catch (const std::exception& error) {
    if (const std::string fault = memory_fault(error); !fault.empty()) return failed(ExitCode::kFailure, fault);
    return failed(ExitCode::kInternal, std::string(error.what()) +
                                           "\nThis is a bug in Capstan: please report it with the command line, the "
                                           "configuration and what 'capstan --version' prints.");
  }
}

void end_orderly_without_memory() noexcept { terminate_otherwise = std::set_terminate(at_terminate); }

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    // Who reads a pipe may stop reading: that is no failure of ours to report.
    if (errno == EPIPE) _exit(0);
    throw RuntimeFault(std::string("standard output: cannot be written: ") + std::strerror(errno) + ".");
  }
}

}  // namespace capstan::cli

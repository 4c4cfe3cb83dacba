#include "cli/program.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace capstan::cli {
namespace {

constexpr const char* kOutOfMemory =
    "out of memory, or of what 'ulimit' lets this process have. A smaller train_micro_batch_size_per_gpu, sequence or "
    "model needs less, and so does a higher zero_optimization.stage with several processes; 'capstan plan' tells how "
    "much.";

bool said_by_another = false;

int failed(ExitCode code, std::string_view message) {
  if (!said_by_another) log::error(message);
  return static_cast<int>(code);
}

}  // namespace

std::filesystem::path install_prefix() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

void another_says_it() { said_by_another = true; }

int run_command(const std::function<int()>& command) {
  try {
    return command();
  } catch (const ConfigError& error) {
    return failed(ExitCode::kConfig, error.what());
  } catch (const PluginError& error) {
    return failed(ExitCode::kPlugin, error.what());
  } catch (const RuntimeFault& error) {
    return failed(ExitCode::kFailure, error.what());
  } catch (const std::bad_alloc&) {
    return failed(ExitCode::kFailure, kOutOfMemory);
  } catch (const std::exception& error) {
    // LibTorch's own, which is no std::bad_alloc.
    if (std::strstr(error.what(), "DefaultCPUAllocator")) return failed(ExitCode::kFailure, kOutOfMemory);
    return failed(ExitCode::kInternal, std::string(error.what()) +
                                           "\nThis is a bug in Capstan: please report it with the command line, the "
                                           "configuration and what 'capstan --version' prints.");
  }
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    // Who reads a pipe may stop reading: that is no failure of ours to report.
    if (errno == EPIPE) _exit(0);
    throw RuntimeFault(std::string("standard output: cannot be written: ") + std::strerror(errno) + ".");
  }
}

}  // namespace capstan::cli

#pragma once

#include <stdexcept>
#include <string>

namespace capstan {

/// For the person who wrote the configuration. The text says where, what was found and what would be right.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// For the person who built or installed a plugin.
class PluginError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// For the person who runs the job: data, disks, checkpoints, processes, numbers that went wrong.
class RuntimeFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Exit codes of the programs; `capstan --help` lists them.
enum class ExitCode : int {
  kSuccess = 0,
  kFailure = 1,    // RuntimeFault
  kUsage = 2,      // command line
  kConfig = 3,     // ConfigError
  kPlugin = 4,     // PluginError
  kInternal = 70,  // anything else that escapes: a bug of ours
  // SIGINT or SIGTERM to a training: after the step was finished, and saved if asked to; or before the first step, or
  // in a step, an evaluation or a save that did not end in its time.
  kInterrupted = 130
};

}  // namespace capstan

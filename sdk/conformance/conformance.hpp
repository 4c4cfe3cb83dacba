#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/text/json.hpp"

/// The conformance kit: what every plugin must keep to, tried on a built file. `capstan plugins check` is a thin face
/// of it; conformance_tests.hpp makes a GoogleTest of every case.
namespace capstan::conformance {

struct CaseName {
  std::string name;  // "optimizer/Lion/shard_invariance"
  std::string rule;  // what a plugin must do, as a sentence
};

/// kNotTried: a case before it failed without which nothing can be tried.
enum class Outcome { kPassed, kFailed, kSkipped, kNotTried };

struct Result {
  std::string name, rule;
  Outcome outcome = Outcome::kPassed;
  std::string text;  // why it failed, was skipped or was not tried
  double seconds = 0;
};

struct Options {
  std::uint64_t seed = 20260101;  // seeds all random numbers; shown with failures
  std::string only;               // cases whose name contains it; empty: all
  bool in_process = false;        // for the debugger: no child processes, no time limits
  double timeout_s = 60;          // the longest that a case may take
  /// Type of an accelerator in whose memory the tensors are, for components that are made for it; empty: host memory.
  /// "emulated" stands in for any device, on every machine, and names accesses of the host and work out of order.
  std::string device;
  /// With `device`: a file with the same optimizers for the CPU, whose updates are compared with those on the device.
  /// Components for any device are compared with themselves without it.
  std::filesystem::path beside;
  /// Values of parameters in place of their defaults, for all components that have them: names that a transform of
  /// weights selects, for instance.
  Json params = Json::object();
};

/// The cases that fit a plugin, known from its manifest. A file without a valid manifest has the loading cases only.
std::vector<CaseName> cases(const std::filesystem::path& plugin);

/// Runs the cases, each in a child process, and calls `seen` after each. Nothing of the plugin runs in this process
/// unless options.in_process. When the file cannot be read or loaded, the cases behind are not tried. The process must
/// not have used LibTorch's thread pool before: it would not survive fork. Throws ConfigError when no component has a
/// parameter of options.params, or is made for options.device, where no plugin brings that device, and where
/// options.beside has no optimizer of a component's type for the CPU.
std::vector<Result> check(const std::filesystem::path& plugin, const Options& options = {},
                          const std::function<void(const Result&)>& seen = {});

bool passed(const std::vector<Result>& results);  // none failed, and at least one passed
Json report(const std::filesystem::path& plugin, const Options& options, const std::vector<Result>& results);
/// "failed   optimizer/Lion/zero_gradient  ..." and how to run that case alone.
std::string line(const Result& result, const std::filesystem::path& plugin, const Options& options);

}  // namespace capstan::conformance

#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/run/run.hpp"
#include "python/engine.hpp"

namespace capstan::python {

/// Makes the engine of a module: one that stands by itself, or that of a Run's generation.
struct EngineMaker {
  MakeEngine make;
};

/// The functions of capstan._run.Run, by their names there.
using RunFunctions = std::map<std::string, pybind11::function>;

/// Lets an exception of Python that has gone through a Run leave it as it was. Called once, after the types of errors
/// are known.
void show_run_errors();

/// A Run whose model, data and steps are Python's. Called with the interpreter's lock, which it gives up while it
/// works.
class PyRun {
 public:
  /// `data`: the number of samples, and the data's fingerprint.
  PyRun(RunSource source, RunFunctions functions, std::pair<std::int64_t, std::string> data,
        std::optional<std::int64_t> eval_samples, RunOptions options);
  ~PyRun();

  int train();
  /// The next micro-batch, None at the end of the run.
  pybind11::object next();
  int exit_code() const { return run_->exit_code(); }

 private:
  RunParts parts();
  RunData data_of(const char* read, std::int64_t samples, std::string fingerprint);
  /// Calls a function of Python's; another process that was lost meanwhile is a PeerFault again.
  template <class... Arguments>
  pybind11::object call(const char* name, const Arguments&... arguments);
  Model model();

  RunFunctions functions_;
  std::pair<std::int64_t, std::string> data_;
  std::optional<std::int64_t> eval_samples_;
  pybind11::object batch_ = pybind11::none();   // the one that was read last
  pybind11::object engine_ = pybind11::none();  // capstan.Engine's own, of the generation under way
  std::unique_ptr<ModuleModel> checked_;        // of a process that is to join a run
  std::unique_ptr<Run> run_;
};

}  // namespace capstan::python

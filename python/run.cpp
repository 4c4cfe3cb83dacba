#include "python/run.hpp"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <exception>

#include "core/comm/communicator.hpp"
#include "core/errors.hpp"

namespace capstan::python {
namespace {

namespace py = pybind11;
using Locked = py::gil_scoped_acquire;
using Unlocked = py::gil_scoped_release;

/// An exception of Python that was an error of ours before. Python gets it back with its traceback.
template <class Error>
class ThroughPython : public Error {
 public:
  ThroughPython(const std::string& text, py::error_already_set thrown)
      : Error(text), thrown_(std::make_shared<py::error_already_set>(std::move(thrown))) {}
  void restore() const { thrown_->restore(); }

 private:
  std::shared_ptr<py::error_already_set> thrown_;
};

template <class Error>
void throw_if(const char* type, py::error_already_set& thrown) {
  const py::object core = py::module_::import("capstan._core");
  if (!thrown.matches(core.attr(type))) return;
  const auto text = py::cast<std::string>(py::str(thrown.value()));
  throw ThroughPython<Error>(text, std::move(thrown));
}

template <class Error>
void give_back(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const ThroughPython<Error>& error) {
    error.restore();
  }
}

}  // namespace

void show_run_errors() {
  py::register_exception_translator(&give_back<RuntimeFault>);
  py::register_exception_translator(&give_back<PeerFault>);
  py::register_exception_translator(&give_back<ConfigError>);
}

template <class... Arguments>
py::object PyRun::call(const char* name, const Arguments&... arguments) {
  try {
    return functions_.at(name)(arguments...);
  } catch (py::error_already_set& thrown) {
    throw_if<PeerFault>("PeerFault", thrown);
    throw_if<ConfigError>("ConfigError", thrown);
    throw_if<RuntimeFault>("RuntimeFault", thrown);
    throw;
  }
}

PyRun::PyRun(RunSource source, RunFunctions functions, std::pair<std::int64_t, std::string> data,
             std::optional<std::int64_t> eval_samples, RunOptions options)
    : functions_(std::move(functions)),
      data_(std::move(data)),
      eval_samples_(eval_samples),
      run_(std::make_unique<Run>(std::move(source), parts(), std::move(options))) {}

PyRun::~PyRun() {
  const Unlocked unlocked;
  run_.reset();
}

RunData PyRun::data_of(const char* read, std::int64_t samples, std::string fingerprint) {
  RunData data{.samples = samples, .fingerprint = std::move(fingerprint), .sequence_length = 0, .read = {}};
  data.read = [this, read](std::span<const std::int64_t> numbers) {
    const Locked locked;
    batch_ = call(read, std::vector<std::int64_t>(numbers.begin(), numbers.end()));
    return Batch();
  };
  return data;
}

/// What the engine of a process that joins would train, for comparison.
Model PyRun::model() {
  const Locked locked;
  const auto facts = py::cast<py::tuple>(call("describe"));
  checked_ = std::make_unique<ModuleModel>(
      ModuleFacts{py::cast<std::string>(facts[0]), py::cast<std::vector<std::pair<std::string, at::Tensor>>>(facts[1]),
                  py::cast<std::vector<std::pair<std::string, at::Tensor>>>(facts[2]),
                  py::cast<std::vector<std::pair<std::string, std::string>>>(facts[3]),
                  py::cast<std::string>(facts[4])},
      facts[5]);
  return ModuleModel::model_of(*checked_);
}

RunParts PyRun::parts() {
  RunParts parts;
  parts.model = [this](const LoadedConfig&) { return model(); };
  parts.data = [this](const LoadedConfig&, const Model&) { return data_of("read", data_.first, data_.second); };
  if (eval_samples_) {
    parts.eval_data = [this](const LoadedConfig&, const Model&) { return data_of("read_eval", *eval_samples_, ""); };
  }
  parts.begin = [this](const LoadedConfig&, const MakeEngine& make) -> Engine& {
    const Locked locked;
    engine_ = call("begin", EngineMaker{make});
    return py::cast<PyEngine&>(engine_).engine();
  };
  parts.end = [this] {
    const Locked locked;
    batch_ = py::none();
    engine_ = py::none();
    call("end");
  };
  parts.step = [this](Engine& engine, const NextBatch& next) {
    const std::int64_t micro_batches = engine.config().batch.gradient_accumulation_steps;
    for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      next();
      const Locked locked;
      call("step", batch_);
    }
    return engine.mean_loss();
  };
  parts.evaluate = [this](Engine&, const NextBatch& next, std::int64_t micro_batches) {
    const Locked locked;
    const auto loss = [this] { return py::cast<at::Tensor>(call("eval_loss", batch_)); };
    return py::cast<PyEngine&>(engine_).eval_batch(loss, micro_batches, next);
  };
  parts.print = [this](std::string_view line) {
    const Locked locked;
    call("print", std::string(line));
  };
  return parts;
}

int PyRun::train() {
  const Unlocked unlocked;
  return run_->train();
}

py::object PyRun::next() {
  {
    const Unlocked unlocked;
    if (!run_->next()) return py::none();
  }
  return batch_;
}

}  // namespace capstan::python

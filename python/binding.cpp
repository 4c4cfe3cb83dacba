// The module capstan._core: engines for Python. Called with the interpreter's lock, which it gives up while an engine
// works.

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <typeinfo>
#include <unordered_set>

#include "capstan/layer.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/config/config.hpp"
#include "core/data/batch_order.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "core/host_words.hpp"
#include "core/log.hpp"
#include "core/memory/deferred_values.hpp"
#include "core/registry/plugin_call.hpp"
#include "python/model.hpp"

namespace capstan::python {
namespace {

namespace py = pybind11;
using torch::autograd::Node;
using Unlocked = py::gil_scoped_release;

/// The values of a module that is built within a `with` statement: capstan.zero.Init.
class Deferral {
 public:
  void enter() { scope_.emplace(*values_); }
  void exit() { scope_.reset(); }
  bool has(const at::Tensor& tensor) const { return values_->has(tensor); }
  void make(const at::Tensor& tensor) { values_->make(tensor); }
  const std::shared_ptr<DeferredValues>& values() const { return values_; }

 private:
  std::shared_ptr<DeferredValues> values_ = std::make_shared<DeferredValues>();
  std::optional<DeferredValues::Scope> scope_;
};

/// The type of such nodes is known to libtorch_python.so alone, so that it can be asked for its name only.
bool is_function_of_python(const Node& node) {
  return std::strcmp(typeid(node).name(), "N5torch8autograd6PyNodeE") == 0;
}

/// Whether backward of `loss` reaches one of the tensors. True as well where a function of Python's is in the way,
/// which may hide them: reentrant checkpointing.
bool reaches(const at::Tensor& loss, const std::unordered_set<const at::TensorImpl*>& tensors) {
  std::vector<Node*> open = {loss.grad_fn().get()};
  if (open.front() == nullptr) return tensors.contains(loss.unsafeGetTensorImpl());
  std::unordered_set<Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (is_function_of_python(*node)) return true;
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (tensors.contains(leaf->variable.unsafeGetTensorImpl())) return true;
    }
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  return false;
}

/// One Engine of Python's.
class PyEngine {
 public:
  PyEngine(ModuleFacts facts, py::object module, const ConfigText& text, const Rendezvous& rendezvous,
           const ProgramValues& program, const Deferral* deferral)
      : model_(std::move(facts), module) {
    Model model = ModuleModel::model_of(model_);
    for (const NamedTensor& parameter : model.parameters()) known_.insert(parameter.tensor.unsafeGetTensorImpl());
    if (deferral != nullptr) model.set_deferred(deferral->values());
    try {
      const Unlocked unlocked;
      engine_.emplace(initialize(std::move(model), text, rendezvous, program));
    } catch (...) {
      model_.rethrow();
      throw;
    }
  }
  /// In a process that was forked from the engine's, its threads and connections are not there.
  ~PyEngine() {
    if (forked()) {
      abandon();
      return;
    }
    const Unlocked unlocked;
    engine_.reset();
  }

  Engine& engine() {
    if (forked()) {
      throw RuntimeFault(
          "this process was forked from the one that made the engine (a worker of a DataLoader?): the engine "
          "belongs to that process alone.");
    }
    if (!engine_) throw RuntimeFault("engine.destroy() has ended this engine.");
    return *engine_;
  }
  void destroy() {
    if (forked()) return abandon();
    const Unlocked unlocked;
    engine_.reset();
  }

  /// Calls `run(*args, **kwargs)` as a pass. Observers see what of the arguments is a tensor, under `names` and the
  /// keywords, and may change it.
  bool inside() const { return inside_; }
  py::object pass(PassKind kind, const py::object& run, py::tuple args, py::dict kwargs, const py::tuple& names) {
    Batch batch;
    for (std::size_t i = 0; i < args.size() && i < names.size(); ++i) put(batch, names[i], args[i]);
    for (const auto& [name, value] : kwargs) put(batch, name, value);
    py::object result;
    const Inside inside(inside_);
    {
      const Unlocked unlocked;
      engine().pass(kind, batch, [&] {
        capstan_error error;
        const sdk::ForwardScope scope(model_host(), &batch, &error);
        const py::gil_scoped_acquire lock;
        args = changed(batch, std::move(args), names);
        for (const auto& [name, value] : kwargs) {
          if (const at::Tensor* tensor = replaced(batch, name, value)) kwargs[name] = py::cast(*tensor);
        }
        result = py::reinterpret_steal<py::object>(PyObject_Call(run.ptr(), args.ptr(), kwargs.ptr()));
        if (!result) throw py::error_already_set();
      });
    }
    return result;
  }

  void backward(const at::Tensor& loss, bool over_accumulation, bool retain_graph) {
    if (loss.requires_grad() && !reaches(loss, known_)) {
      throw RuntimeFault(
          "backward: the loss does not come from this engine's model: none of its parameters is in the "
          "loss's graph. Make it of what engine(...) returned.");
    }
    const Unlocked unlocked;
    engine().backward(loss, {.over_accumulation = over_accumulation, .retain_graph = retain_graph});
  }

  double eval_batch(std::function<at::Tensor()> step, std::int64_t micro_batches) {
    model_.step = std::move(step);
    const Inside inside(inside_);
    try {
      const Unlocked unlocked;
      return engine().eval_batch([] { return Batch(); }, micro_batches);
    } catch (...) {
      model_.rethrow();
      throw;
    }
  }

 private:
  /// A pass of the module is under way.
  struct Inside {
    explicit Inside(bool& flag) : flag(flag), before(std::exchange(flag, true)) {}
    ~Inside() { flag = before; }
    bool& flag;
    const bool before;
  };

  bool forked() const { return ::getpid() != process_; }
  void abandon() { new std::optional<Engine>(std::move(engine_)); }

  static void put(Batch& batch, py::handle name, py::handle value) {
    if (!THPVariable_Check(value.ptr())) return;
    batch.tensors.insert_or_assign(py::cast<std::string>(name), THPVariable_Unpack(value.ptr()));
  }
  /// What has taken the place of an argument; null: nothing.
  static const at::Tensor* replaced(const Batch& batch, py::handle name, py::handle value) {
    if (!THPVariable_Check(value.ptr())) return nullptr;
    const auto found = batch.tensors.find(py::cast<std::string>(name));
    const bool same = found == batch.tensors.end() || found->second.is_same(THPVariable_Unpack(value.ptr()));
    return same ? nullptr : &found->second;
  }
  static py::tuple changed(const Batch& batch, py::tuple args, const py::tuple& names) {
    for (std::size_t i = 0; i < args.size() && i < names.size(); ++i) {
      if (const at::Tensor* tensor = replaced(batch, names[i], args[i])) {
        py::list other(args);
        other[i] = py::cast(*tensor);
        args = py::tuple(other);
      }
    }
    return args;
  }

  ModuleModel model_;
  std::unordered_set<const at::TensorImpl*> known_;
  std::optional<Engine> engine_;
  bool inside_ = false;
  pid_t process_ = ::getpid();
};

/// Where processes meet: what the environment says, with the place that Python's side has agreed on.
Rendezvous meeting(const std::optional<std::pair<std::string, int>>& place, std::optional<int> listening_socket) {
  if (!place) return read_rendezvous(process_environment());
  Rendezvous rendezvous = read_rendezvous([&](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "MASTER_ADDR") return place->first;
    if (std::string_view(name) == "MASTER_PORT") return std::to_string(place->second);
    return process_environment()(name);
  });
  rendezvous.store_exists = false;
  rendezvous.listening_socket = rendezvous.rank == 0 ? listening_socket.value_or(-1) : -1;
  return rendezvous;
}

/// A function that the engine may drop while it works without the interpreter's lock.
std::shared_ptr<py::function> kept(py::function function) {
  return {new py::function(std::move(function)), [](py::function* dropped) {
            const py::gil_scoped_acquire lock;
            delete dropped;
          }};
}

py::dict facts_of(const Engine& engine) {
  const Config& config = engine.config();
  py::dict facts;
  facts["train_batch_size"] = config.batch.train_batch_size;
  facts["micro_batch_size"] = config.batch.micro_batch_size;
  facts["accumulation"] = config.batch.gradient_accumulation_steps;
  facts["stage"] = config.zero.stage;
  facts["dtype"] = config.precision.compute == Precision::kBf16   ? "bfloat16"
                   : config.precision.compute == Precision::kFp16 ? "float16"
                                                                  : "float32";
  facts["has_scheduler"] = config.scheduler.has_value();
  facts["has_optimizer"] = config.optimizer.has_value();
  facts["optimizer"] = config.optimizer ? config.optimizer->type : "";
  facts["scheduler"] = config.scheduler ? config.scheduler->type : "";
  facts["gradient_clipping"] = config.gradient_clipping;
  facts["shuffle"] = config.run.shuffle;
  facts["seed"] = config.run.seed;
  facts["drop_last"] = config.dataloader_drop_last;
  facts["save_16bit"] = config.zero.stage3_gather_16bit_weights_on_model_save;
  facts["overlap"] = config.zero.overlap_comm;
  facts["layers"] = engine.wrapped_layers();
  facts["device"] = config.device;
  facts["effective"] = config.effective.dump();
  return facts;
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (python_error& error) {
    error.restore();
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

template <class Error>
void show_error(py::module_& module, const char* name, PyObject* base, const char* text) {
  static py::exception<Error> type(module, name, base);
  type.attr("__doc__") = text;
  type.attr("__module__") = "capstan";
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(type.ptr(), error.what());
    }
  });
}

void show_engine(py::module_& module) {
  py::class_<GatherScope>(module, "GatherScope").def("close", [](GatherScope& scope) {
    const Unlocked unlocked;
    scope.close();
  });
  py::class_<PyEngine>(module, "Engine")
      .def(py::init([](const std::string& description, std::vector<std::pair<std::string, at::Tensor>> parameters,
                       std::vector<std::pair<std::string, at::Tensor>> buffers,
                       std::vector<std::pair<std::string, std::string>> modules, const std::string& facts,
                       py::object owner, const std::string& config, const std::string& source, bool in_memory,
                       const std::vector<std::pair<std::string, std::string>>& program,
                       const std::optional<std::pair<std::string, int>>& place, std::optional<int> listening_socket,
                       const Deferral* deferral) {
             ProgramValues values;
             for (const auto& [path, json] : program) values.emplace_back(path, Json::parse(json));
             const ConfigText text =
                 in_memory ? ConfigText{config, source, false, false} : read_config_text(config);
             return std::make_unique<PyEngine>(
                 ModuleFacts{description, std::move(parameters), std::move(buffers), std::move(modules), facts},
                 std::move(owner), text, meeting(place, listening_socket), values, deferral);
           }),
           py::kw_only(), py::arg("description"), py::arg("parameters"), py::arg("buffers"), py::arg("modules"),
           py::arg("facts"), py::arg("module"), py::arg("config"), py::arg("source"), py::arg("in_memory"),
           py::arg("program"), py::arg("place"), py::arg("listening_socket"), py::arg("deferral"))
      .def("pass_", [](PyEngine& self, bool training, const py::object& run, py::tuple args, py::dict kwargs,
                       const py::tuple& names) {
        return self.pass(training ? PassKind::kTraining : PassKind::kEvaluation, run, std::move(args),
                         std::move(kwargs), names);
      })
      .def("inside", &PyEngine::inside)
      .def("backward", &PyEngine::backward)
      .def("step",
           [](PyEngine& self) {
             const Unlocked unlocked;
             return self.engine().step().applied;
           })
      .def("eval_batch", &PyEngine::eval_batch)
      .def("destroy", &PyEngine::destroy)
      .def("save_checkpoint",
           [](PyEngine& self, const std::string& dir, const std::string& tag, const std::string& state) {
             const Unlocked unlocked;
             return self.engine().save_checkpoint(dir, tag, Json::parse(state));
           })
      .def("load_checkpoint",
           [](PyEngine& self, const std::string& dir, const std::string& tag) {
             const Unlocked unlocked;
             return self.engine().load_checkpoint(dir, tag).dump();
           })
      .def("finish_saving",
           [](PyEngine& self) {
             const Unlocked unlocked;
             self.engine().finish_saving();
           })
      .def("load_weights",
           [](PyEngine& self, const std::string& path) {
             const Unlocked unlocked;
             self.engine().load_weights(path);
           })
      .def("load_teacher",
           [](PyEngine& self, const std::string& path) {
             const Unlocked unlocked;
             self.engine().load_teacher(path);
           })
      .def("gather",
           [](PyEngine& self, const std::vector<std::string>& names, std::optional<int> written_by) {
             const Unlocked unlocked;
             return std::make_unique<GatherScope>(self.engine().gather(names, written_by));
           },
           py::keep_alive<0, 1>())
      .def("set_boundary",
           [](PyEngine& self, std::optional<bool> last) { self.engine().set_accumulation_boundary(last); })
      .def("at_boundary", [](PyEngine& self) { return self.engine().at_accumulation_boundary(); })
      .def("groups",
           [](PyEngine& self) {
             py::list groups;
             for (const ParameterGroupView& group : self.engine().parameter_groups()) {
               groups.append(py::make_tuple(group.numbers, group.parameters));
             }
             return groups;
           })
      .def("set_learning_rate",
           [](PyEngine& self, std::size_t group, double rate) { self.engine().set_learning_rate(group, rate); })
      .def("set_own_optimizer",
           [](PyEngine& self, py::function update) {
             self.engine().set_own_optimizer([update = kept(std::move(update))](const std::vector<OwnSlot>& slots) {
               const py::gil_scoped_acquire lock;
               py::list list;
               for (const OwnSlot& slot : slots) list.append(py::make_tuple(slot.name, slot.master, slot.gradient));
               (*update)(list);
             });
           })
      .def("want_grad_norm", [](PyEngine& self, bool on) { self.engine().want_grad_norm(on); })
      .def("last_step",
           [](PyEngine& self) {
             const StepReport& report = self.engine().last_step();
             return py::make_tuple(report.applied, report.lr, report.momentum, report.grad_norm, report.loss_scale);
           })
      .def("progress",
           [](PyEngine& self) {
             const Progress& progress = self.engine().progress();
             return py::make_tuple(progress.global_steps, progress.updates, progress.skipped_steps,
                                   progress.global_samples);
           })
      .def("mean_loss", [](PyEngine& self) { return self.engine().mean_loss(); })
      .def("next_lr", [](PyEngine& self) { return self.engine().next_lr(); })
      .def("facts", [](PyEngine& self) { return facts_of(self.engine()); })
      .def("rank", [](PyEngine& self) { return self.engine().rank(); })
      .def("world_size", [](PyEngine& self) { return self.engine().world_size(); })
      .def("tell_failure", [](PyEngine& self, const std::string& why) { self.engine().tell_failure(why); })
      .def("has_sampler", [](PyEngine& self) { return self.engine().has_sampler(); })
      .def("start_sampler",
           [](PyEngine& self, std::int64_t samples, const std::string& fingerprint) {
             const Unlocked unlocked;
             self.engine().start_sampler(samples, fingerprint);
           })
      .def("step_samples",
           [](PyEngine& self) {
             const auto samples = self.engine().step_samples();
             return std::vector<std::int64_t>(samples.begin(), samples.end());
           })
      .def("write_metric",
           [](PyEngine& self, const std::string& tag, double value) { self.engine().write_metric(tag, value); })
      .def("flush_monitors",
           [](PyEngine& self) {
             const Unlocked unlocked;
             self.engine().flush_monitors();
           })
      .def("set_difficulty_schedule",
           [](PyEngine& self, const std::string& metric, py::function function) {
             self.engine().set_difficulty_schedule(metric, [function = kept(std::move(function))](std::int64_t step) {
               const py::gil_scoped_acquire lock;
               return py::cast<std::int64_t>((*function)(step));
             });
           })
      .def("state_dump", [](PyEngine& self) { return self.engine().state_dump(); });
}

/// Runs `call(f)`, a layer of the host, where f(hidden) calls the function.
template <class Call>
at::Tensor in_host(const py::function& function, const Call& call) {
  const Unlocked unlocked;
  try {
    return call([&](const at::Tensor& input) {
      const py::gil_scoped_acquire lock;
      return py::cast<at::Tensor>(function(input));
    });
  } catch (const sdk::HostFailure&) {
    throw RuntimeFault(sdk::ForwardScope::current->error->text);
  }
}

at::Tensor run_layer(const std::string& name, const at::Tensor& hidden, const py::function& function) {
  return in_host(function, [&](const auto& f) { return capstan::layer(name, hidden, f); });
}

at::Tensor run_checkpoint(const at::Tensor& hidden, const py::function& function) {
  return in_host(function, [&](const auto& f) { return capstan::checkpoint("capstan.checkpoint", hidden, f); });
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The engine behind the package capstan.";
  host_words() = {
      "capstan.zero.GatheredParameters, or 'with engine.gather():' (kernels of torch.compile take memory: its backend "
      "'aot_eager' works at every stage)",
      "engine."};
  py::register_exception_translator(&translate);
  show_error<ConfigError>(module, "ConfigError", PyExc_ValueError,
                          "A mistake in the configuration: every problem, one a line.");
  show_error<PluginError>(module, "PluginError", PyExc_RuntimeError, "A plugin that cannot be loaded, or failed.");
  show_error<RuntimeFault>(module, "RuntimeFault", PyExc_RuntimeError,
                           "What goes wrong in a run: data, disks, checkpoints, processes, numbers.");
  py::class_<Deferral>(module, "Deferral")
      .def(py::init<>())
      .def("enter", &Deferral::enter)
      .def("exit", &Deferral::exit)
      .def("has", &Deferral::has)
      .def("make", &Deferral::make);
  show_engine(module);
  module.def("layer", &run_layer);
  module.def("checkpoint", &run_checkpoint);
  module.def("order",
             [](std::int64_t samples, std::uint64_t seed, bool shuffle, std::int64_t first, std::int64_t count) {
               const BatchOrder order(samples, seed, shuffle);
               std::vector<std::int64_t> list;
               for (std::int64_t n = first; n < first + count; ++n) list.push_back(order.sample(n));
               return list;
             });
}

}  // namespace capstan::python

// The module capstan._core: engines for Python. Called with the interpreter's lock, which it gives up while an engine
// works.

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>

#include "capstan/layer.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/comm/communicator.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/config/config.hpp"
#include "core/data/batch_order.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/initialize.hpp"
#include "core/engine/kept_values.hpp"
#include "core/errors.hpp"
#include "core/host_words.hpp"
#include "core/memory/forward_rerun.hpp"
#include "core/memory/vector_math.hpp"
#include "core/registry/config_mistakes.hpp"
#include "python/engine.hpp"
#include "python/run.hpp"

namespace capstan::python {
namespace {

namespace py = pybind11;
using Unlocked = py::gil_scoped_release;

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

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

ConfigText config_text(const std::string& config, const std::string& source, bool in_memory) {
  return in_memory ? ConfigText{config, source, false, false} : read_config_text(config);
}

/// Makes engines that stand by themselves: of this configuration, and processes that meet there.
EngineMaker maker_of(const std::string& config, const std::string& source, bool in_memory, const NamedTexts& program,
                     const std::optional<std::pair<std::string, int>>& place, std::optional<int> listening_socket) {
  ProgramValues values;
  for (const auto& [path, json] : program) values.emplace_back(path, Json::parse(json));
  return {[text = config_text(config, source, in_memory), rendezvous = meeting(place, listening_socket),
           values = std::move(values)](Model model) { return initialize(std::move(model), text, rendezvous, values); }};
}

std::unique_ptr<PyEngine> make_engine(const std::string& description, NamedTensors parameters, NamedTensors buffers,
                                      NamedTexts modules, const std::string& facts, py::handle owner,
                                      std::vector<std::string> arguments, const std::vector<std::string>& left_out,
                                      const Deferral* deferral, const EngineMaker& maker) {
  return std::make_unique<PyEngine>(
      ModuleFacts{description, std::move(parameters), std::move(buffers), std::move(modules), facts}, owner,
      std::move(arguments), left_out, deferral, maker.make);
}

/// Runs, whose parts are functions of capstan/_run.py.
void show_run(py::module_& module) {
  py::class_<PyRun>(module, "Run")
      .def(py::init([](const std::string& config, const std::string& source, bool in_memory, RunFunctions functions,
                       std::pair<std::int64_t, std::string> data, std::optional<std::int64_t> eval_samples,
                       std::string resume, std::string init_from, bool handles_signals,
                       const std::optional<std::pair<std::string, int>>& place, std::optional<int> listening_socket) {
             return std::make_unique<PyRun>(RunSource{[=] { return config_text(config, source, in_memory); }, {}},
                                            std::move(functions), std::move(data), eval_samples,
                                            RunOptions{std::move(resume), std::move(init_from), handles_signals,
                                                       [=] { return meeting(place, listening_socket); }});
           }),
           py::kw_only(), py::arg("config"), py::arg("source"), py::arg("in_memory"), py::arg("functions"),
           py::arg("data"), py::arg("eval_samples"), py::arg("resume"), py::arg("init_from"),
           py::arg("handles_signals"), py::arg("place"), py::arg("listening_socket"))
      .def("train", &PyRun::train)
      .def("next", &PyRun::next)
      .def("exit_code", &PyRun::exit_code);
}

void show_engine(py::module_& module) {
  py::class_<EngineMaker>(module, "EngineMaker")
      .def(py::init(&maker_of), py::kw_only(), py::arg("config"), py::arg("source"), py::arg("in_memory"),
           py::arg("program"), py::arg("place"), py::arg("listening_socket"));
  py::class_<GatherScope>(module, "GatherScope").def("close", [](GatherScope& scope) {
    const Unlocked unlocked;
    scope.close();
  });
  py::class_<PyEngine>(module, "Engine")
      .def(py::init(&make_engine), py::kw_only(), py::arg("description"), py::arg("parameters"), py::arg("buffers"),
           py::arg("modules"), py::arg("facts"), py::arg("module"), py::arg("arguments"), py::arg("left_out"),
           py::arg("deferral"), py::arg("maker"))
      .def("run", &PyEngine::run)
      .def("evaluate", &PyEngine::evaluate)
      .def("inside", &PyEngine::inside)
      .def("backward", &PyEngine::backward)
      .def("waits_for", &PyEngine::waits_for)
      .def("step", &PyEngine::step)
      .def("eval_batch",
           [](PyEngine& self, std::function<at::Tensor()> step, std::int64_t micro_batches) {
             return self.eval_batch(std::move(step), micro_batches, [] { return Batch(); });
           })
      .def("destroy", &PyEngine::destroy)
      .def("refuse_open_gathers", &PyEngine::refuse_open_gathers)
      .def("zero_grad",
           [](PyEngine& self) {
             const Unlocked unlocked;
             self.engine().zero_grad();
           })
      .def("save_checkpoint",
           [](PyEngine& self, const std::string& dir, const std::string& tag, const std::string& state, bool frozen) {
             const Unlocked unlocked;
             return self.engine().save_checkpoint(dir, tag, Json::parse(state), frozen);
           })
      .def("load_checkpoint", &PyEngine::load_checkpoint)
      .def("finish_saving",
           [](PyEngine& self) {
             const Unlocked unlocked;
             self.engine().finish_saving();
           })
      .def("load_weights",
           [](PyEngine& self, const std::string& path, bool strict) {
             const Unlocked unlocked;
             return self.engine().load_weights(path, strict).dump();
           })
      .def("load_teacher",
           [](PyEngine& self, const std::string& path) {
             const Unlocked unlocked;
             self.engine().load_teacher(path);
           })
      .def(
          "gather",
          [](PyEngine& self, const std::vector<std::string>& names, std::optional<int> written_by) {
            const Unlocked unlocked;
            return std::make_unique<GatherScope>(self.engine().gather(names, written_by));
          },
          py::keep_alive<0, 1>())
      .def("trains",
           [](PyEngine& self, const std::string& parameter) { return KeptValues(self.engine()).trains(parameter); })
      .def("states",
           [](PyEngine& self, const std::string& parameter) {
             const Unlocked unlocked;
             return KeptValues(self.engine()).states(parameter);
           })
      .def("kept",
           [](PyEngine& self, const std::string& parameter, const std::string& name,
              bool whole) -> std::optional<at::Tensor> {
             const Unlocked unlocked;
             const KeptValues kept(self.engine());
             const at::Tensor values = whole ? kept.whole({parameter, name}) : kept.part({parameter, name});
             return values.defined() ? std::optional(values) : std::nullopt;
           })
      .def("set_kept",
           [](PyEngine& self, const std::string& parameter, const std::string& name, const at::Tensor& values,
              bool whole) {
             const Unlocked unlocked;
             const KeptValues kept(self.engine());
             whole ? kept.set_whole({parameter, name}, values) : kept.set_part({parameter, name}, values);
           })
      .def("joined",
           [](PyEngine& self, const std::string& parameter, const at::Tensor& part) {
             const Unlocked unlocked;
             return KeptValues(self.engine()).joined(parameter, part);
           })
      .def("set_boundary", &PyEngine::set_boundary)
      .def("at_boundary", &PyEngine::at_boundary)
      .def("begin_no_sync", &PyEngine::begin_no_sync)
      .def("end_no_sync", &PyEngine::end_no_sync)
      .def("micro_steps", &PyEngine::micro_steps)
      .def("groups",
           [](PyEngine& self) {
             py::list groups;
             for (const ParameterGroupView& group : self.engine().parameter_groups()) {
               groups.append(py::make_tuple(group.numbers, group.parameters));
             }
             return groups;
           })
      .def("group_numbers", [](PyEngine& self) { return self.engine().group_numbers(); })
      .def("set_group_number",
           [](PyEngine& self, std::size_t group, const std::string& name, const std::vector<double>& values) {
             self.engine().set_group_number(group, name, values);
           })
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
      .def("first_sample",
           [](PyEngine& self, std::int64_t micro_batch) { return first_sample(self.engine(), micro_batch); })
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
    const std::string& text = sdk::ForwardScope::current->error->text;
    if (has_config_mistake(text)) throw ConfigError(config_mistakes_of(text));
    throw RuntimeFault(text);
  }
}

at::Tensor run_layer(const std::string& name, const at::Tensor& hidden, const py::function& function) {
  // torch.utils.checkpoint runs layers of forward again in backward, where no forward is under way.
  capstan_error error;
  std::optional<sdk::ForwardScope> again;
  if (sdk::ForwardScope::current == nullptr) {
    if (capstan_batch* batch = batch_of_rerun()) again.emplace(model_host(), batch, &error);
  }
  return in_host(function, [&](const auto& f) { return capstan::layer(name, hidden, f); });
}

at::Tensor run_checkpoint(const at::Tensor& hidden, const py::function& function) {
  return in_host(function, [&](const auto& f) { return capstan::checkpoint("capstan.checkpoint", hidden, f); });
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The engine behind the package capstan.";
  prepare_vector_math();  // a program may compute before it has an engine
  host_words() = {
      "capstan.zero.GatheredParameters, or 'with engine.gather():' "
      "(kernels of torch.compile take memory: its backend "
      "'aot_eager' works at every stage)",
      "engine."};
  py::register_exception_translator(&translate);
  show_error<ConfigError>(module, "ConfigError", PyExc_ValueError,
                          "A mistake in the configuration: every problem, one a line.");
  show_error<PluginError>(module, "PluginError", PyExc_RuntimeError, "A plugin that cannot be loaded, or failed.");
  show_error<RuntimeFault>(module, "RuntimeFault", PyExc_RuntimeError,
                           "What goes wrong in a run: data, disks, "
                           "checkpoints, processes, numbers.");
  show_error<PeerFault>(module, "PeerFault", module.attr("RuntimeFault").ptr(),
                        "Another process of the run is gone, or does not come.");
  show_run_errors();
  py::class_<Deferral>(module, "Deferral")
      .def(py::init<>())
      .def("enter", &Deferral::enter)
      .def("exit", &Deferral::exit)
      .def("has", &Deferral::has)
      .def("make", &Deferral::make);
  show_engine(module);
  show_run(module);
  module.def("layer", &run_layer);
  module.def("checkpoint", &run_checkpoint);
  module.def("write_safetensors",
             [](const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
               const Unlocked unlocked;
               std::vector<SafetensorsEntry> entries;
               for (const auto& [name, values] : tensors) entries.push_back({name, values});
               write_safetensors(path, entries);
             });
  module.def("order", [](std::int64_t samples, std::uint64_t seed, bool shuffle, std::int64_t first,
                         std::int64_t count) { return BatchOrder(samples, seed, shuffle).samples(first, count); });
}

}  // namespace capstan::python

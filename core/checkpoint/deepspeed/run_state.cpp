// The state of a checkpoint of Capstan, of what DeepSpeed's files say of the run.

#include <algorithm>
#include <array>
#include <set>

#include "core/checkpoint/deepspeed/notes.hpp"
#include "core/checkpoint/deepspeed/reading.hpp"
#include "core/checkpoint/torch_file/json_of.hpp"
#include "core/text/utf8.hpp"

namespace capstan::deepspeed {
namespace {

constexpr std::int64_t kFormat = 1;  // of state.json
constexpr std::int64_t kMostSteps = 1'000'000'000'000;

/// The members of the model's file that DeepSpeed itself keeps; others are the program's client state.
constexpr std::array kOwn = {"module",
                             "buffer_names",
                             "optimizer",
                             "param_shapes",
                             "shared_params",
                             "frozen_param_shapes",
                             "lr_scheduler",
                             "frozen_param_fragments",
                             "data_sampler",
                             "random_ltd",
                             "skipped_steps",
                             "global_steps",
                             "global_samples",
                             "dp_world_size",
                             "mp_world_size",
                             "checkpoint_parallel_dimensions",
                             "ds_config",
                             "ds_version",
                             "csr_tensor_module_names",
                             "sparse_tensor_module_names",
                             "universal_checkpoint_info"};

/// The member of the client state that has the state of a program's own schedule.
constexpr const char* kScheduleOfProgram = "deepspeed.lr_scheduler";

const Json* member_of(const Json& object, const char* section, const char* key) {
  const Json* around = object.find(section);
  return around != nullptr ? around->find(key) : nullptr;
}

/// How many values of a configuration, and of a client state, become JSON: a small file can stand for any number.
constexpr std::int64_t kMostOfDict = 8'000'000;

Json saved_config(Reading& reading) {
  const auto config = reading.model_root().find("ds_config");
  Json json = Json::object();
  if (!config || !config->is(Pickle::Kind::kDict)) {
    reading.note("its ds_config cannot be read (" + std::string(config ? "it is not a dict" : "there is none") +
                 "): optimizer and schedule are not compared with those of this run.");
    return json;
  }
  // Key by key: transformers sets steps_per_print to infinity, which JSON lacks.
  std::int64_t left = kMostOfDict;
  for (const auto& [key, value] : config->members()) {
    std::string defect;
    auto member = json_of(value, defect, &left);
    if (first_invalid_utf8(key)) {
      reading.note("a key of ds_config is left out: its name is not UTF-8.");
    } else if (member) {
      json[key] = std::move(*member);
    } else if (key != "steps_per_print") {
      reading.note("ds_config." + key + " cannot be read (" + defect + ") and is left out.");
    }
  }
  return json;
}

Json client_state(Reading& reading) {
  Json state = Json::object();
  std::int64_t left = kMostOfDict;
  for (const auto& [name, value] : reading.model_root().members()) {
    if (std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end()) continue;
    std::string defect;
    auto json = json_of(value, defect, &left);
    if (first_invalid_utf8(name)) {
      reading.note("a client state is left out: its name is not UTF-8.");
    } else if (json) {
      state[name] = std::move(*json);
    } else {
      reading.note("client state '" + name + "' cannot be read (" + defect + ") and is left out.");
    }
  }
  // DeepSpeed's schedules have their place alone, which the counters tell.
  const auto schedule = reading.model_root().find("lr_scheduler");
  if (!schedule || schedule->find("last_batch_iteration")) return state;
  std::string defect;
  if (auto json = json_of(*schedule, defect)) {
    state[kScheduleOfProgram] = std::move(*json);
  } else {
    reading.note("the state of the program's schedule cannot be read (" + defect + ") and is left out.");
  }
  return state;
}

/// A dynamic scale; nothing: the loss was not scaled, or by a fixed number.
std::optional<Json> loss_scaler(const Reading& reading, const Json& config) {
  const auto positive = [](const TorchValue& value) {
    const double number = value.number();
    if (number <= 0) value.refuse("a positive number");
    return number;
  };
  const auto optimizer = reading.model_root().find("optimizer");
  const bool stage0 = reading.optimizer.empty();
  const auto from = stage0 ? optimizer : reading.loss_scaler;
  if (!from || !from->find("cur_scale")) return std::nullopt;
  Json state = Json::object();
  state["scale"] = positive(from->at("cur_scale"));
  const auto dynamic = from->find(stage0 ? "dynamic_loss_scale" : "dynamic");
  if (!dynamic || !dynamic->boolean()) return std::nullopt;
  state["step"] = from->at("cur_iter").integer(0, kMostSteps);
  state["last_overflow"] = from->at("last_overflow_iter").integer(-1, kMostSteps);
  constexpr std::int64_t kMostHysteresis = 1'000'000'000;
  // At stage 0 the files lack it: it is the configured one, of which a scale that has not overflowed is full.
  const Json* configured = member_of(config, "fp16", "hysteresis");
  const bool known = configured != nullptr && configured->is_integer() && configured->as_integer() > 0;
  state["hysteresis"] = stage0 ? (known ? std::min(configured->as_integer(), kMostHysteresis) : 2)
                               : from->at("cur_hysteresis").integer(1, kMostHysteresis);
  return state;
}

/// A number, or several, as a list; nothing for what is neither.
std::optional<Json> numbers_of(const TorchValue& value) {
  const auto is_number = [](const TorchValue& one) {
    return one.is(Pickle::Kind::kInteger) || one.is(Pickle::Kind::kReal) || one.is(Pickle::Kind::kTensor);
  };
  Json list = Json::array();
  for (const TorchValue& one : value.is_list() ? value.items() : std::vector<TorchValue>{value}) {
    if (!is_number(one)) return std::nullopt;
    list.push_back(one.number());
  }
  return list.size() > 0 ? std::optional(list) : std::nullopt;
}

Json groups(const Reading& reading) {
  Json list = Json::array();
  if (!reading.parameter_groups) return list;
  const bool has_schedule = reading.model_root().find("lr_scheduler").has_value();
  for (const TorchValue& saved : reading.parameter_groups->items()) {
    Json group = Json::object();
    const auto rate = saved.find("initial_lr") ? saved.find("initial_lr") : saved.find("lr");
    group["base_lr"] = rate ? rate->number() : 0.0;
    // A rate that no schedule of the file sets is the program's: that of the next update.
    if (const auto next = saved.find("lr"); next && !has_schedule) {
      group["numbers"]["lr"] = Json::array();
      group["numbers"]["lr"].push_back(next->number());
    }
    group["numbers_then"] = Json::object();
    for (const auto& [name, value] : saved.members()) {
      static const std::set<std::string> kOthers = {"lr", "initial_lr", "params", "step"};
      if (kOthers.contains(name)) continue;
      if (auto numbers = numbers_of(value)) group["numbers_then"][name] = std::move(*numbers);
    }
    list.push_back(std::move(group));
  }
  return list;
}

void note_schedule(Reading& reading) {
  const auto schedule = reading.model_root().find("lr_scheduler");
  const auto last = schedule ? schedule->find("last_batch_iteration") : std::nullopt;
  if (!last) return;
  const std::int64_t updates = last->integer(-1, kMostSteps) + 1;
  if (updates == reading.counters.updates()) return;
  reading.note("its schedule stands at update " + std::to_string(updates) + ", and the run has made " +
               std::to_string(reading.counters.updates()) + ", at which the schedule goes on.");
}

void note_what_is_lost(Reading& reading) {
  if (!reading.parameter_groups && !reading.optimized.empty()) {
    reading.note("it has no learning rates (zero_optimization.elastic_checkpoint): those of the configuration count.");
  }
  reading.note(
      "DeepSpeed saves no states of random number generators: dropout draws other numbers than it would have.");
  for (const char* name : {"data_sampler", "random_ltd"}) {
    if (!reading.model_root().find(name)) continue;
    reading.note(std::string(name) + " is DeepSpeed's own and is left out: curricula go on by the run's steps.");
  }
  if (reading.optimizer.empty() && reading.model_root().find("optimizer") &&
      reading.model_root().at("optimizer").find("cur_scale")) {
    reading.note(
        "at ZeRO stage 0 DeepSpeed keeps moments of gradients that it has divided by the loss scale without "
        "having scaled the loss: the first updates are larger than they should be.");
  }
}

}  // namespace

Json run_state(Reading& reading) {
  const TorchValue root = reading.model_root();
  Json state = Json::object();
  const auto version = root.find("ds_version");
  state["format"] = kFormat;
  state["written_by"] = "DeepSpeed" + (version ? " " + version->text() : std::string());
  state["global_steps"] = reading.counters.steps;
  state["updates"] = reading.counters.updates();
  state["skipped_steps"] = reading.counters.skipped;
  state["global_samples"] = reading.counters.samples;
  state["world_size"] = reading.counters.world;
  const Json config = saved_config(reading);
  state["config"] = config;
  if (const auto scaler = loss_scaler(reading, config)) state["loss_scaler"] = *scaler;
  state["groups"] = groups(reading);
  for (const char* kind : {"optimizer", "scheduler"}) {
    const Json* type = member_of(config, kind, "type");
    if (type == nullptr || !type->is_string()) continue;
    state[kind]["type"] = *type;
    state[kind]["state"] = "";
  }
  state["observers"] = Json::object();
  // Left out at stages 2 and 3 by exclude_frozen_parameters; the other stages do not tell.
  if (!root.find("frozen_param_shapes")) state["without_frozen"] = 1;
  state["client_state"] = client_state(reading);
  note_schedule(reading);
  note_what_is_lost(reading);
  state[kNotes] = Json(Json::Array(reading.notes.begin(), reading.notes.end()));
  state[kWeightNotes] = Json(Json::Array(reading.weight_notes.begin(), reading.weight_notes.end()));
  return state;
}

}  // namespace capstan::deepspeed

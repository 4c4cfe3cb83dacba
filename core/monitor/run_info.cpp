#include "core/monitor/run_info.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace capstan {
namespace {

constexpr std::array<std::string_view, 1> kCredentials = {"api_key"};

/// Sections that say how a run is watched or where its files are, not what it computes.
constexpr std::array<std::string_view, 11> kNotTraining = {
    "tensorboard",      "wandb",      "comet",  "csv_monitor",  "steps_per_print", "wall_clock_breakdown",
    "memory_breakdown", "dump_state", "timers", "comms_logger", "flops_profiler"};

template <std::size_t N>
bool has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// [name, value, "boolean" | "number" | "string"] of every leaf; lists as JSON text.
void add_leaves(const std::string& path, const Json& value, Json& out) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) add_leaves(path.empty() ? key : path + "." + key, member, out);
    return;
  }
  if (value.is_null()) return;
  Json row = Json::array();
  row.push_back(path);
  const bool plain = value.is_bool() || value.is_number() || value.is_string();
  row.push_back(plain ? value : Json(value.dump()));
  row.push_back(value.is_bool() ? "boolean" : value.is_number() ? "number" : "string");
  out.push_back(std::move(row));
}

Json component(const ComponentChoice& choice) {
  Json out = Json::object();
  out["type"] = choice.type;
  out["params"] = choice.params;
  return out;
}

/// What the file sets and what follows from it: the numbers by which people compare runs.
Json hparams(const Config& config) {
  Json chosen = Json::object();
  for (const auto& [key, value] : config.document.as_object()) {
    if (!has(kNotTraining, key) && key != "capstan") chosen[key] = value;
  }
  chosen["train_batch_size"] = config.batch.train_batch_size;
  chosen["train_micro_batch_size_per_gpu"] = config.batch.micro_batch_size;
  chosen["gradient_accumulation_steps"] = config.batch.gradient_accumulation_steps;
  if (config.optimizer) chosen["optimizer"] = component(*config.optimizer);
  if (config.scheduler) chosen["scheduler"] = component(*config.scheduler);
  if (config.run.model) chosen["model"] = component(*config.run.model);
  chosen["seed"] = config.run.seed;
  Json rows = Json::array();
  add_leaves("", without_credentials(chosen), rows);
  return rows;
}

}  // namespace

Json without_credentials(const Json& document) {
  if (document.is_object()) {
    Json out = Json::object();
    for (const auto& [key, value] : document.as_object()) {
      out[key] = has(kCredentials, key) && value.is_string() ? Json("***") : without_credentials(value);
    }
    return out;
  }
  if (document.is_array()) {
    Json out = Json::array();
    for (const Json& element : document.as_array()) out.push_back(without_credentials(element));
    return out;
  }
  return document;
}

Json run_info(const Config& config, const RunFacts& facts) {
  Json info = Json::object();
  if (!facts.run.empty()) info["run"] = facts.run;
  info["resumed_at"] = facts.resumed_at ? Json(*facts.resumed_at) : Json();
  info["world_size"] = config.batch.world_size;
  info["model"] = facts.model;
  info["parameters"] = facts.parameters;
  info["device"] = facts.device;
  info["config"] = without_credentials(config.effective);
  info["config_text"] = without_credentials(config.document).dump(2);
  info["hparams"] = hparams(config);
  return info;
}

}  // namespace capstan

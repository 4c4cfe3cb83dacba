// Keys that another key's value leaves without effect: one notice each, which names that value.

#include <string>
#include <vector>

#include "core/config/rules/section_rules.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

constexpr const char* kZeroStage = "zero_optimization.stage";

bool has_value(const Json* object, const char* key) {
  const Json* value = object ? object->find(key) : nullptr;
  return value && !value->is_null();
}

std::string text_at(const Json& object, const char* key) {
  const Json* value = object.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

/// Keys of schedule_config that the pacing function of this type does not read.
std::vector<const char*> keys_of_other_schedules(const std::string& type) {
  if (type == "fixed_linear") return {"root_degree", "difficulty", "max_step"};
  if (type == "fixed_root") return {"difficulty", "max_step"};
  if (type == "fixed_discrete") return {"total_curriculum_step", "difficulty_step", "root_degree"};
  return {};
}

void note_schedule(const Json& section, const std::string& path, Problems& problems) {
  const std::string type = text_at(section, "schedule_type");
  for (const char* key : keys_of_other_schedules(type)) {
    if (!has_value(section.find("schedule_config"), key)) continue;
    problems.notice(join_path(join_path(path, "schedule_config"), key),
                    "has no effect with schedule_type \"" + type + "\".");
  }
}

void note_metric(const Json& metric, const std::string& path, Problems& problems) {
  note_schedule(metric, path, problems);
  if (!has_value(&metric, "index_to_metric_path")) return;
  const bool single = text_at(metric, "clustering_type") == "single_cluster";
  const std::string difficulty = text_at(metric, "difficulty_type");
  if (!single && difficulty != "percentile") return;
  problems.notice(
      join_path(path, "index_to_metric_path"),
      "has no effect with " +
          (single ? std::string("clustering_type \"single_cluster\"") : "difficulty_type \"" + difficulty + "\"") +
          ": the file is not read.");
}

void note_curricula(const Effective& values, Problems& problems) {
  if (values.flag("curriculum_learning.enabled")) {
    note_schedule(*values.find("curriculum_learning"), "curriculum_learning", problems);
  }
  const std::string sampling = "data_efficiency.data_sampling.curriculum_learning";
  const Json* metrics = values.find(sampling + ".curriculum_metrics");
  if (!values.flag(sampling + ".enabled") || !metrics || !metrics->is_object()) return;
  for (const auto& [name, metric] : metrics->as_object()) {
    if (metric.is_object()) note_metric(metric, join_path(sampling + ".curriculum_metrics", name), problems);
  }
}

/// Row, head and channel pruning shrink the modules that take what they prune; the others leave all shapes alone.
void note_related_modules(const Effective& values, Problems& problems) {
  for (const char* method : {"weight_quantization", "activation_quantization", "sparse_pruning"}) {
    const std::string path = std::string("compression_training.") + method;
    const Json* groups = values.find(path + ".different_groups");
    if (!values.flag(path + ".shared_parameters.enabled") || !groups || !groups->is_object()) continue;
    for (const auto& [name, group] : groups->as_object()) {
      if (!group.is_object() || !has_value(&group, "related_modules")) continue;
      problems.notice(
          join_path(join_path(path + ".different_groups", name), "related_modules"),
          std::string("has no effect in ") + method + ": only row, head and channel pruning shrink anything.");
    }
  }
}

void note_zero(const Effective& values, bool alone, Problems& problems) {
  const std::int64_t stage = values.integer(kZeroStage);
  const std::string at_stage = "has no effect at stage " + std::to_string(stage);
  const auto note = [&](const char* key, bool idle, const char* why) {
    const std::string path = std::string("zero_optimization.") + key;
    if (idle && values.given(path)) problems.notice(path, at_stage + why);
  };
  if (!alone) {
    const char* no_gather = stage == 0 ? ": no process gathers parameters." : ", which gathers before each operator.";
    note("allgather_partitions", stage == 0 || stage == 3, no_gather);
    note("allgather_bucket_size", stage == 0, no_gather);
  }
  note("ignore_unused_parameters",
       !values.flag("zero_optimization.ignore_unused_parameters") && (stage == 0 || stage == 3),
       ": stages 1 and 2 look for parameters that a step did not use.");
}

void note_sparse_attention(const Effective& values, Problems& problems) {
  const std::string path = "sparse_attention.different_layout_per_head", mode = values.text("sparse_attention.mode");
  if (!values.given("sparse_attention") || !values.flag(path)) return;
  const std::int64_t random = values.integer("sparse_attention.num_random_blocks");
  if (mode == "bslongformer") {
    problems.notice(path, "has no effect in mode \"bslongformer\", whose layout is that of every head.");
  } else if ((mode == "variable" || mode == "bigbird") && random == 0) {
    problems.notice(path,
                    "has no effect in mode \"" + mode + "\" without num_random_blocks: heads differ by those alone.");
  }
}

void note_number_checkpoints(const Effective& values, Problems& problems) {
  const std::string path = "activation_checkpointing.", key = path + "number_checkpoints";
  for (const char* flag : {"partition_activations", "contiguous_memory_optimization", "cpu_checkpointing",
                           "synchronize_checkpoint_boundary", "profile"}) {
    if (values.flag(path + flag)) return;  // other rules judge the key then
  }
  const Json* number = values.find(key);
  if (!values.given(key) || !number || number->is_null() || values.given("capstan.recompute")) return;
  problems.notice(key, "has no effect alone: contiguous_memory_optimization reads it.");
}

}  // namespace

void report_keys_idle_by_value(const Effective& values, bool alone, Problems& problems) {
  note_curricula(values, problems);
  note_related_modules(values, problems);
  note_zero(values, alone, problems);
  note_sparse_attention(values, problems);
  note_number_checkpoints(values, problems);
}

}  // namespace capstan

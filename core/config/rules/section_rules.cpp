#include "core/config/rules/section_rules.hpp"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "core/schema/regular_expression.hpp"
#include "core/schema/value.hpp"
#include "core/text/places.hpp"

namespace capstan {
namespace {

void check_sparse_attention(const Effective& values, Problems& problems) {
  const std::string path = "sparse_attention", mode = values.text("sparse_attention.mode");
  if (mode.empty()) return;
  const std::int64_t local = values.integer(path + ".num_local_blocks"),
                     global = values.integer(path + ".num_global_blocks");
  const std::int64_t patterns = values.integer(path + ".num_different_global_patterns");
  if (mode == "fixed" && local > 0 && global > 0) {
    if (local % global != 0) {
      problems.error(path + ".num_local_blocks", std::to_string(local) + " is not a multiple of num_global_blocks, " +
                                                     std::to_string(global) + ".");
    } else if (patterns > local / global) {
      problems.error(path + ".num_different_global_patterns", std::to_string(patterns) +
                                                                  " is above num_local_blocks / num_global_blocks, " +
                                                                  std::to_string(local / global) + ".");
    }
    if (patterns > 1 && !values.flag(path + ".different_layout_per_head")) {
      problems.error(path + ".num_different_global_patterns", "above 1 needs different_layout_per_head.");
    }
  }
  const bool horizontal = values.flag(path + ".horizontal_global_attention");
  if ((mode == "fixed" || mode == "variable") && horizontal && values.text(path + ".attention") == "unidirectional") {
    problems.error(path + ".horizontal_global_attention", "needs bidirectional attention.");
  }
  const Json *starts = values.find(path + ".global_block_indices"),
             *ends = values.find(path + ".global_block_end_indices");
  if ((mode != "variable" && mode != "bslongformer") || !starts || !ends) return;
  if (starts->size() != ends->size()) {
    problems.error(path + ".global_block_end_indices", "must have as many entries as global_block_indices, " +
                                                           std::to_string(starts->size()) + ", got " +
                                                           std::to_string(ends->size()) + ".");
    return;
  }
  for (std::size_t i = 0; i < starts->size(); ++i) {
    if (ends->as_array()[i].as_integer() <= starts->as_array()[i].as_integer()) {
      problems.error(element_path(path + ".global_block_end_indices", i),
                     shown(ends->as_array()[i]) + " is not above its start, " + shown(starts->as_array()[i]) + ".");
    }
  }
}

/// Keys of sparse_attention that only some modes read: d, f, v, b and l as in the reference.
void note_sparse_attention(const Effective& values, Problems& problems) {
  struct Use {
    const char* key;
    std::string_view modes;
  };
  constexpr Use kUses[] = {
      {"different_layout_per_head", "fixed variable bigbird bslongformer"},
      {"num_local_blocks", "fixed"},
      {"num_global_blocks", "fixed bigbird"},
      {"attention", "fixed variable bigbird bslongformer"},
      {"horizontal_global_attention", "fixed variable"},
      {"num_different_global_patterns", "fixed"},
      {"num_random_blocks", "variable bigbird"},
      {"local_window_blocks", "variable"},
      {"global_block_indices", "variable bslongformer"},
      {"global_block_end_indices", "variable bslongformer"},
      {"num_sliding_window_blocks", "bigbird bslongformer"},
  };
  const std::string mode = values.text("sparse_attention.mode");
  if (mode.empty()) return;
  for (const Use& use : kUses) {
    const std::string path = std::string("sparse_attention.") + use.key;
    if (values.given(path) && use.modes.find(mode) == std::string_view::npos)
      problems.notice(path, "has no effect in mode \"" + mode + "\".");
  }
  const std::string layouts = "sparse_attention.different_layout_per_head";
  if (!values.flag(layouts)) return;
  if (mode == "bslongformer") {
    problems.notice(layouts, "has no effect in mode \"bslongformer\", whose layout is that of every head.");
  } else if ((mode == "variable" || mode == "bigbird") && values.integer("sparse_attention.num_random_blocks") == 0) {
    problems.notice(layouts,
                    "has no effect in mode \"" + mode + "\" without num_random_blocks: heads differ by those alone.");
  }
}

/// What switches recomputation on without saying of which layers.
const char* switch_without_layers(const Effective& values) {
  if (values.find("capstan.recompute") != nullptr || values.integer("pipeline.activation_checkpoint_interval") > 0) {
    return nullptr;
  }
  for (const char* flag : {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
                           "synchronize_checkpoint_boundary", "profile"}) {
    if (values.flag(std::string("activation_checkpointing.") + flag)) return flag;
  }
  return nullptr;
}

void check_recompute(const Effective& values, const Config& config, Problems& problems) {
  const Json* section = values.find("capstan.recompute");
  const Json* layers = values.find("capstan.recompute.layers");
  for (std::size_t i = 0; layers && layers->is_array() && i < layers->size(); ++i) {
    const Json& pattern = layers->as_array()[i];
    const std::string fault = pattern.is_string() ? expression_fault(pattern.as_string()) : "";
    if (!fault.empty()) problems.error(element_path("capstan.recompute.layers", i), fault);
  }
  const std::int64_t interval = values.integer("pipeline.activation_checkpoint_interval");
  const std::int64_t every = values.integer("capstan.recompute.every", 1);
  if (section && interval > 0 && values.given("capstan.recompute.every") && every != interval) {
    problems.error("capstan.recompute.every", std::to_string(every) +
                                                  ", and pipeline.activation_checkpoint_interval says " +
                                                  std::to_string(interval) + ". Take one of the two away.");
  }
  const bool carried = std::any_of(config.observers.begin(), config.observers.end(), [](const ComponentChoice& choice) {
    return choice.where == "activation_checkpointing";
  });
  if (const char* flag = carried ? switch_without_layers(values) : nullptr) {
    problems.notice("activation_checkpointing",
                    std::string(flag) +
                        " switches it on: every layer that the model names is computed again in "
                        "backward. capstan.recompute.layers chooses among them.");
  }
  const bool on = section || interval > 0 || carried;
  const std::string path = "activation_checkpointing.";
  if (config.activation_offload && !on) {
    problems.notice("capstan.offload.activations", "has no effect without capstan.recompute.");
  }
  for (const char* flag : {"contiguous_memory_optimization", "cpu_checkpointing"}) {
    const bool acts = config.device != "cpu" || std::string_view(flag) != "cpu_checkpointing";
    if (!config.activation_offload || !acts || !values.flag(path + flag)) continue;
    problems.error(path + flag,
                   "says where the inputs of recomputed layers wait, and so does "
                   "capstan.offload.activations. Take one of the two away.");
  }
  const Json* number = values.find(path + "number_checkpoints");
  const bool counts = number && !number->is_null();
  if (counts && !on && switch_without_layers(values) == nullptr) {
    problems.notice(path + "number_checkpoints", "has no effect alone: contiguous_memory_optimization reads it.");
  }
  if (!carried) return;
  if (values.flag(path + "partition_activations")) {
    problems.notice(path + "partition_activations",
                    "has no effect: there are no model-parallel ranks to split activations over.");
  }
  if (counts && !values.flag(path + "contiguous_memory_optimization")) {
    problems.notice(path + "number_checkpoints", "has no effect without contiguous_memory_optimization.");
  }
  if (config.device != "cpu") return;
  if (values.flag(path + "cpu_checkpointing")) {
    problems.notice(path + "cpu_checkpointing",
                    "has no effect in this run, whose device is the CPU: activations are in host memory already.");
  }
  if (values.flag(path + "synchronize_checkpoint_boundary")) {
    problems.notice(path + "synchronize_checkpoint_boundary",
                    "has no effect in this run, whose device is the CPU: there is nothing to wait for.");
  }
}

void check_comet(const Effective& values, Problems& problems) {
  const std::string key = values.text("comet.experiment_key");
  if (key.empty()) return;
  const bool plain = std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  if (plain && key.size() >= 32 && key.size() <= 50) return;
  problems.error("comet.experiment_key", "must be 32 to 50 letters and digits, got " + std::to_string(key.size()) +
                                             (plain ? "." : " characters with others among them."));
}

void check_autotuning(const Effective& values, Problems& problems) {
  for (const char* key : {"autotuning.results_dir", "autotuning.exps_dir"}) {
    const Json* value = values.find(key);
    if (value && value->is_string() && value->as_string().empty()) problems.error(key, "must not be empty.");
  }
  const std::int64_t start = values.integer("autotuning.start_profile_step"),
                     end = values.integer("autotuning.end_profile_step");
  if (end < start)
    problems.error("autotuning.end_profile_step",
                   std::to_string(end) + " is below start_profile_step, " + std::to_string(start) + ".");
}

void check_zenflow(const Effective& values, Problems& problems) {
  const std::string path = "zero_optimization.zenflow", strategy = values.text(path + ".select_strategy");
  const Json* interval = values.find(path + ".select_interval");
  if (strategy.empty() || !interval) return;
  if (strategy == "auto" && interval->is_integer()) {
    problems.error(path + ".select_interval",
                   "must be \"auto\" while select_strategy is \"auto\", got " + shown(*interval) + ".");
  } else if (strategy != "auto" && !interval->is_integer()) {
    problems.error(path + ".select_interval", "must be a number while select_strategy is \"" + strategy + "\".");
  }
}

}  // namespace

void check_other_sections(const Effective& values, const Config& config, Problems& problems) {
  check_sparse_attention(values, problems);
  note_sparse_attention(values, problems);
  check_recompute(values, config, problems);
  check_comet(values, problems);
  check_autotuning(values, problems);
  check_zenflow(values, problems);
  if (values.given("datastates_ckpt")) {
    problems.notice("datastates_ckpt",
                    "checkpoints are written by a thread of Capstan's own while training goes on; the package "
                    "DataStates is not used.");
  }
  if (values.find("expert_parallel.load_balance_coeff")) {
    problems.error("expert_parallel.load_balance_coeff", "must be null: no balancing loss is added.");
  }
}

}  // namespace capstan

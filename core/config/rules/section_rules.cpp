#include "core/config/rules/section_rules.hpp"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

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
}

void check_activation_checkpointing(const Effective& values, Problems& problems) {
  const std::string path = "activation_checkpointing";
  if (!values.flag(path + ".contiguous_memory_optimization")) return;
  const bool partition = values.flag(path + ".partition_activations");
  const Json* number = values.find(path + ".number_checkpoints");
  if (partition && number) return;
  problems.error(path + ".contiguous_memory_optimization",
                 std::string("needs ") + (partition ? "" : "partition_activations") +
                     (!partition && !number ? " and " : "") + (number ? "" : "number_checkpoints") + ".");
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

void check_other_sections(const Effective& values, Problems& problems) {
  check_sparse_attention(values, problems);
  note_sparse_attention(values, problems);
  check_activation_checkpointing(values, problems);
  check_comet(values, problems);
  check_autotuning(values, problems);
  check_zenflow(values, problems);
  if (values.find("expert_parallel.load_balance_coeff")) {
    problems.error("expert_parallel.load_balance_coeff", "must be null: no balancing loss is added.");
  }
}

}  // namespace capstan

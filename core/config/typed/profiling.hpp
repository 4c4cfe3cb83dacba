#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// autotuning.model_info
struct ModelInfoConfig {
  bool profile = false;
  std::optional<std::int64_t> num_params, hidden_size;
  bool operator==(const ModelInfoConfig&) const = default;
};

struct AutotuningConfig {
  bool enabled = false;
  std::string results_dir = "autotuning_results", exps_dir = "autotuning_exps";
  bool overwrite = false;
  std::string metric = "throughput";  // latency, throughput, FLOPS
  std::int64_t start_profile_step = 3, end_profile_step = 5;
  bool fast = true;
  std::optional<std::int64_t> max_train_batch_size;
  std::int64_t min_train_batch_size = 1;
  std::int64_t max_train_micro_batch_size_per_gpu = 1024, min_train_micro_batch_size_per_gpu = 1;
  std::int64_t mp_size = 1;
  std::int64_t num_tuning_micro_batch_sizes = 3;
  std::string tuner_type = "model_based";  // gridsearch, random, model_based
  std::int64_t tuner_early_stopping = 5, tuner_num_trials = 50;
  std::map<std::string, std::string> arg_mappings;
  std::optional<std::string> metric_path, model_info_path;
  std::optional<ModelInfoConfig> model_info;
  bool operator==(const AutotuningConfig&) const = default;
};

AutotuningConfig read_autotuning(const SectionValues& section);

}  // namespace capstan

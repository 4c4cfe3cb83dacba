#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// schedule_config of a curriculum; which members are set depends on the schedule's type.
struct CurriculumSchedule {
  std::optional<std::int64_t> total_curriculum_step, difficulty_step;
  std::optional<double> root_degree;
  std::vector<std::int64_t> difficulty, max_step;  // fixed_discrete
  bool operator==(const CurriculumSchedule&) const = default;
};

/// One of data_sampling.curriculum_learning.curriculum_metrics.
struct CurriculumMetricConfig {
  std::string index_to_sample_path, index_to_metric_path;
  std::string difficulty_type;  // value, percentile
  std::string clustering_type;  // schedule_based, single_cluster
  std::int64_t min_difficulty = 0, max_difficulty = 0;
  std::string schedule_type;  // fixed_linear, fixed_root, fixed_discrete, custom
  CurriculumSchedule schedule;
  bool operator==(const CurriculumMetricConfig&) const = default;
};

struct DynamicBatchingConfig {
  bool enabled = false;
  std::optional<std::int64_t> max_tokens;
  std::string metrics_path;
  std::string lr_scaling_method = "linear";  // linear, sqrt, none
  std::int64_t min_batch_size = 1;
  std::optional<std::int64_t> max_batch_size;
  std::string sequence_picking_order = "dataloader";  // random, seqlen, dataloader
  bool verbose = false;
  bool operator==(const DynamicBatchingConfig&) const = default;
};

struct DataSamplingConfig {
  bool enabled = false;
  std::int64_t num_epochs = 1000, num_workers = 0;
  bool pin_memory = false;
  bool curriculum_enabled = false;  // curriculum_learning.enabled
  std::string data_cluster_path;
  std::map<std::string, CurriculumMetricConfig> curriculum_metrics;
  DynamicBatchingConfig dynamic_batching;
  bool operator==(const DataSamplingConfig&) const = default;
};

struct RandomLtdConfig {
  bool enabled = false;
  std::optional<std::int64_t> total_layer_num, random_ltd_layer_num;
  std::vector<std::int64_t> random_ltd_layer_id;
  std::optional<std::string> model_mask_name;
  std::string model_type;          // decoder, encoder
  std::string hidden_state_order;  // batch_seq_dim, seq_batch_dim
  // random_ltd_schedule
  std::optional<std::int64_t> min_value, max_value, require_steps, seq_per_step;
  std::string schedule_type;  // fixed_linear
  bool layer_token_lr_schedule = false;
  bool operator==(const RandomLtdConfig&) const = default;
};

/// data_efficiency. A part is on when every `enabled` on its path is.
struct DataEfficiencyConfig {
  bool enabled = false;
  std::int64_t seed = 1234;
  DataSamplingConfig data_sampling;
  bool data_routing_enabled = false;
  RandomLtdConfig random_ltd;
  bool operator==(const DataEfficiencyConfig&) const = default;
};

/// curriculum_learning at the top level: the legacy curriculum over sequence length.
struct LegacyCurriculumConfig {
  bool enabled = false;
  std::string curriculum_type;  // seqlen
  std::int64_t min_difficulty = 0, max_difficulty = 0;
  std::string schedule_type;  // fixed_linear, fixed_root, fixed_discrete, custom
  CurriculumSchedule schedule;
  bool operator==(const LegacyCurriculumConfig&) const = default;
};

DataEfficiencyConfig read_data_efficiency(const SectionValues& section);
LegacyCurriculumConfig read_legacy_curriculum(const SectionValues& section);

}  // namespace capstan

#pragma once

#include <cstdint>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// elasticity
struct ElasticityConfig {
  bool enabled = false;
  std::int64_t max_batch = 0;  // max_train_batch_size
  std::vector<std::int64_t> micro_batches;
  std::int64_t min_devices = 1, max_devices = 10000;  // min_gpus, max_gpus
  std::int64_t min_time = 0;                          // minutes
  bool prefer_larger = true;                          // prefer_larger_batch
  double version = 0.2;
  bool ignore_non_elastic_batch_info = false;
  std::int64_t devices_per_node = 1, model_parallel = 1;  // num_gpus_per_node, model_parallel_size
  bool operator==(const ElasticityConfig&) const = default;
};

ElasticityConfig read_elasticity(const SectionValues& section);

}  // namespace capstan

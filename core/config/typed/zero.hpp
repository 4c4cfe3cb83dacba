#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

/// The most elements that a bucket of gradients takes, whatever reduce_bucket_size says: more in one call gains
/// nothing, and puts off the first call of a backward and the end of the last. A matrix of 1024 squared and what
/// belongs to it.
inline constexpr std::int64_t kLargestReduceBucket = 5 << 18;

/// zero_optimization.offload_param
struct OffloadParamConfig {
  std::string device = "none";  // none, cpu, nvme
  std::int64_t buffer_count = 5;
  std::int64_t buffer_size = 100'000'000;   // elements
  std::int64_t max_in_cpu = 1'000'000'000;  // elements
  bool operator==(const OffloadParamConfig&) const = default;
};

/// zero_optimization.offload_optimizer
struct OffloadOptimizerConfig {
  std::string device = "none";  // none, cpu, nvme
  std::int64_t buffer_count = 4;
  double ratio = 1.0;
  std::optional<bool> pipeline_read, pipeline_write;  // false: one tile after the other; else they overlap
  bool operator==(const OffloadOptimizerConfig&) const = default;
};

/// zero_optimization.zeropp_loco_param
struct LocoConfig {
  double err_beta = 0.8;
  std::int64_t reset_T = 1024;
  bool operator==(const LocoConfig&) const = default;
};

/// zero_optimization. Sizes are in elements.
struct ZeroConfig {
  int stage = 0;
  std::int64_t sub_group_size = 1'000'000'000;
  bool allgather_partitions = true;
  std::int64_t allgather_bucket_size = 500'000'000;
  bool overlap_comm = false;
  bool reduce_scatter = true;
  std::int64_t reduce_bucket_size = 500'000'000;
  bool grad_hooks = true;
  bool load_from_fp32_weights = true;
  bool ignore_unused_parameters = true;
  bool compute_grad_norm = true;

  // Stage 3
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  std::int64_t stage3_max_reuse_distance = 1'000'000'000;
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;
  std::int64_t stage3_param_persistence_threshold = 100'000;
  std::int64_t stage3_model_persistence_threshold = INT64_MAX;
  bool stage3_gather_16bit_weights_on_model_save = false;

  // ZeRO++ and MiCS
  std::int64_t zero_hpz_partition_size = 1;
  bool zero_quantized_weights = false;
  bool zero_quantized_nontrainable_weights = false;
  bool zero_quantized_gradients = false;
  std::optional<LocoConfig> zeropp_loco_param;

  std::optional<OffloadParamConfig> offload_param;
  std::optional<OffloadOptimizerConfig> offload_optimizer;
  bool operator==(const ZeroConfig&) const = default;
};

ZeroConfig read_zero(const SectionValues& section);

}  // namespace capstan

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
  std::string nvme_path = "/local_nvme";
  bool pin_memory = true;
  std::int64_t buffer_count = 5;
  std::int64_t buffer_size = 100'000'000;   // elements
  std::int64_t max_in_cpu = 1'000'000'000;  // elements
  bool operator==(const OffloadParamConfig&) const = default;
};

/// zero_optimization.offload_optimizer
struct OffloadOptimizerConfig {
  std::string device = "none";  // none, cpu, nvme
  std::string nvme_path = "/local_nvme";
  bool pin_memory = true;
  std::int64_t buffer_count = 4;
  bool fast_init = false;
  double ratio = 1.0;
  std::optional<bool> pipeline_read, pipeline_write;  // false: one tile after the other; else they overlap
  bool super_offload = false;
  double cpuadam_cores_perc = 0.8;
  bool operator==(const OffloadOptimizerConfig&) const = default;
};

/// zero_optimization.zenflow; an absent interval is "auto".
struct ZenflowConfig {
  double topk_ratio = 0.1;
  std::string select_strategy = "auto";  // auto, step, epoch
  std::optional<std::int64_t> select_interval, update_interval;
  bool overlap_step = false, offload = false;
  double auto_ratio = 0.99;
  std::int64_t full_warm_up_rounds = 0;
  double pt_reserved_cores_perc = 0.5;
  bool operator==(const ZenflowConfig&) const = default;
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
  bool contiguous_gradients = true;
  bool grad_hooks = true;
  bool round_robin_gradients = false;
  bool load_from_fp32_weights = true;
  bool ignore_unused_parameters = true;
  bool compute_grad_norm = true;
  bool use_multi_rank_bucket_allreduce = true;

  // Stage 3
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  std::int64_t stage3_max_reuse_distance = 1'000'000'000;
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;
  std::int64_t stage3_param_persistence_threshold = 100'000;
  std::int64_t stage3_model_persistence_threshold = INT64_MAX;
  bool stage3_gather_16bit_weights_on_model_save = false;
  std::int64_t stage3_module_granularity_threshold = 0;
  bool stage3_use_all_reduce_for_fetch_params = false;
  bool stage3_allgather_sequential = false;
  bool memory_efficient_linear = true;
  bool pipeline_loading_checkpoint = false;
  bool override_module_apply = true;
  bool log_trace_cache_warnings = false;
  bool enable_sanity_checks = false;
  bool save_muon_momentum_buffer_in_memory = false;
  std::vector<std::string> leaf_classes, leaf_names, leaf_name_suffixes;  // leaf_module

  // ZeRO++ and MiCS
  std::int64_t zero_hpz_partition_size = 1;
  bool zero_quantized_weights = false;
  bool zero_quantized_nontrainable_weights = false;
  bool zero_quantized_gradients = false;
  std::optional<LocoConfig> zeropp_loco_param;
  std::int64_t mics_shard_size = -1;  // -1: off
  bool mics_hierarchical_params_gather = false;

  std::optional<OffloadParamConfig> offload_param;
  std::optional<OffloadOptimizerConfig> offload_optimizer;
  std::optional<ZenflowConfig> zenflow;
  bool operator==(const ZeroConfig&) const = default;
};

/// aio: asynchronous reads and writes of offloaded tensors.
struct AioConfig {
  std::int64_t block_size = 1'048'576;      // bytes
  std::optional<std::int64_t> queue_depth;  // absent: as deep as the store likes it
  std::int64_t intra_op_parallelism = 1;
  bool single_submit = false;
  bool overlap_events = true;
  bool use_gds = false;
  bool operator==(const AioConfig&) const = default;
};

ZeroConfig read_zero(const SectionValues& section);
AioConfig read_aio(const SectionValues& section);

}  // namespace capstan

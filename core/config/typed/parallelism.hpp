#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

struct PipelineConfig {
  std::optional<std::int64_t> stages;  // absent: "auto"
  std::string partition = "best";
  bool seed_layers = false;
  std::int64_t activation_checkpoint_interval = 0;  // 0: off
  bool pipe_partitioned = true, grad_partitioned = true;
  bool use_reentrant = true;
  bool operator==(const PipelineConfig&) const = default;
};

/// One of tensor_parallel.partition_config.layer_specs.
struct LayerSpecConfig {
  std::vector<std::string> patterns;
  std::string partition_type;  // column, row, skip
  Json shape;                  // a list of numbers, or of lists of them
  std::optional<std::int64_t> partition_dim;
  std::vector<std::string> model_types;
  std::optional<bool> gather_output, grad_allreduce;
  bool operator==(const LayerSpecConfig&) const = default;
};

struct PartitionConfig {
  bool use_default_specs = true;
  std::vector<LayerSpecConfig> layer_specs;
  bool strict_mode = false;
  std::int64_t embedding_partition_dim = 1;
  std::optional<std::vector<std::string>> lm_head_patterns;
  bool operator==(const PartitionConfig&) const = default;
};

struct TensorParallelConfig {
  std::int64_t autotp_size = 0;  // 0: off
  bool tp_overlap_comm = false;
  std::optional<std::string> preset_model;
  std::optional<PartitionConfig> partition_config;
  std::int64_t tp_size = 1, tp_grain_size = 1;  // tensor_parallel.tp
  std::string dtype = "fp16";
  bool keep_module_on_host = false;
  bool kernel_inject = false;
  bool operator==(const TensorParallelConfig&) const = default;
};

/// expert_parallel; an absent number is "auto" or found in the model.
struct ExpertParallelConfig {
  bool enabled = false;
  std::int64_t autoep_size = 1, expert_tensor_parallel_size = 1;
  std::optional<std::string> preset_model, moe_layer_pattern, router_pattern, expert_pattern;
  std::optional<std::string> expert_w1, expert_w2, expert_w3, num_experts_attr, top_k_attr;
  std::optional<bool> has_shared_experts;
  std::optional<std::string> shared_experts_pattern, shared_experts_gate_pattern;
  bool use_grouped_mm = true, disable_triton_grouped_mm = false;
  std::optional<bool> route_norm;
  double route_scale = 1.0;
  std::string score_func = "auto", score_apply = "auto", combine_impl = "auto";
  std::optional<std::int64_t> top_k;
  std::optional<double> routed_scaling_factor;
  std::optional<std::int64_t> num_expert_groups, num_limited_groups;
  std::optional<double> load_balance_coeff;
  bool validate_folding_routing = false;
  bool operator==(const ExpertParallelConfig&) const = default;
};

struct CompileConfig {
  bool deepcompile = false;
  std::optional<std::vector<std::string>> passes;  // z1, z3, autosp, autotp
  bool free_activation = false;
  std::int64_t free_activation_threshold = 10'485'760;  // bytes
  bool offload_activation = false, offload_activation_pin_memory = true;
  bool offload_opt_states = false, offload_parameters = false;
  bool double_buffer = true, symmetric_memory = false, debug_log = false;
  bool sync_before_reduce = false, sync_after_reduce = false;
  bool sync_before_allgather = false, sync_after_allgather = false;
  bool keep_int_input_tensors = true, keep_all_input_tensors = false;
  bool operator==(const CompileConfig&) const = default;
};

struct HybridEngineConfig {
  bool enabled = false;
  std::int64_t max_out_tokens = 512, inference_tp_size = 1;
  bool release_inference_cache = false, pin_parameters = true;
  std::int64_t tp_gather_partition_size = 8;
  bool enable_cuda_graph = false;
  bool operator==(const HybridEngineConfig&) const = default;
};

/// Every key about how a model is spread over devices and run.
struct ParallelismConfig {
  std::int64_t sequence_parallel_size = 1;
  std::optional<std::int64_t> data_parallel_size;
  bool use_data_before_expert_parallelism = false;
  PipelineConfig pipeline;
  TensorParallelConfig tensor_parallel;
  ExpertParallelConfig expert_parallel;
  CompileConfig compile;
  HybridEngineConfig hybrid_engine;
  bool operator==(const ParallelismConfig&) const = default;
};

/// `root`: the whole document.
ParallelismConfig read_parallelism(const SectionValues& root);

}  // namespace capstan

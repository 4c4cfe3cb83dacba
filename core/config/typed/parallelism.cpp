#include "core/config/typed/parallelism.hpp"

namespace capstan {
namespace {

PipelineConfig read_pipeline(const SectionValues& section) {
  PipelineConfig to;
  section.read({{"stages", &to.stages},
                {"partition", &to.partition},
                {"seed_layers", &to.seed_layers},
                {"activation_checkpoint_interval", &to.activation_checkpoint_interval},
                {"pipe_partitioned", &to.pipe_partitioned},
                {"grad_partitioned", &to.grad_partitioned},
                {"use_reentrant", &to.use_reentrant}});
  return to;
}

LayerSpecConfig read_layer_spec(const SectionValues& section) {
  LayerSpecConfig to;
  section.read({{"patterns", &to.patterns},
                {"partition_type", &to.partition_type},
                {"shape", &to.shape},
                {"partition_dim", &to.partition_dim},
                {"model_types", &to.model_types},
                {"gather_output", &to.gather_output},
                {"grad_allreduce", &to.grad_allreduce}});
  return to;
}

std::optional<PartitionConfig> read_partition(const SectionValues& section) {
  PartitionConfig to;
  section.read({{"use_default_specs", &to.use_default_specs},
                {"strict_mode", &to.strict_mode},
                {"embedding_partition_dim", &to.embedding_partition_dim},
                {"lm_head_patterns", &to.lm_head_patterns}});
  for (const SectionValues& spec : section.elements("layer_specs")) to.layer_specs.push_back(read_layer_spec(spec));
  return section.present() ? std::optional(to) : std::nullopt;
}

TensorParallelConfig read_tensor_parallel(const SectionValues& section) {
  TensorParallelConfig to;
  section.read({{"autotp_size", &to.autotp_size},
                {"tp_overlap_comm", &to.tp_overlap_comm},
                {"preset_model", &to.preset_model},
                {"dtype", &to.dtype},
                {"keep_module_on_host", &to.keep_module_on_host},
                {"kernel_inject", &to.kernel_inject}});
  section.section("tp").read({{"tp_size", &to.tp_size}, {"tp_grain_size", &to.tp_grain_size}});
  to.partition_config = read_partition(section.section("partition_config"));
  return to;
}

ExpertParallelConfig read_expert_parallel(const SectionValues& section) {
  ExpertParallelConfig to;
  section.read({{"enabled", &to.enabled},
                {"autoep_size", &to.autoep_size},
                {"expert_tensor_parallel_size", &to.expert_tensor_parallel_size},
                {"preset_model", &to.preset_model},
                {"moe_layer_pattern", &to.moe_layer_pattern},
                {"router_pattern", &to.router_pattern},
                {"expert_pattern", &to.expert_pattern},
                {"expert_w1", &to.expert_w1},
                {"expert_w2", &to.expert_w2},
                {"expert_w3", &to.expert_w3},
                {"num_experts_attr", &to.num_experts_attr},
                {"top_k_attr", &to.top_k_attr},
                {"has_shared_experts", &to.has_shared_experts},
                {"shared_experts_pattern", &to.shared_experts_pattern},
                {"shared_experts_gate_pattern", &to.shared_experts_gate_pattern},
                {"use_grouped_mm", &to.use_grouped_mm},
                {"disable_triton_grouped_mm", &to.disable_triton_grouped_mm},
                {"route_norm", &to.route_norm},
                {"route_scale", &to.route_scale},
                {"score_func", &to.score_func},
                {"score_apply", &to.score_apply},
                {"combine_impl", &to.combine_impl},
                {"top_k", &to.top_k},
                {"routed_scaling_factor", &to.routed_scaling_factor},
                {"num_expert_groups", &to.num_expert_groups},
                {"num_limited_groups", &to.num_limited_groups},
                {"load_balance_coeff", &to.load_balance_coeff},
                {"validate_folding_routing", &to.validate_folding_routing}});
  return to;
}

CompileConfig read_compile(const SectionValues& section) {
  CompileConfig to;
  section.read({{"deepcompile", &to.deepcompile},
                {"passes", &to.passes},
                {"free_activation", &to.free_activation},
                {"free_activation_threshold", &to.free_activation_threshold},
                {"offload_activation", &to.offload_activation},
                {"offload_activation_pin_memory", &to.offload_activation_pin_memory},
                {"offload_opt_states", &to.offload_opt_states},
                {"offload_parameters", &to.offload_parameters},
                {"double_buffer", &to.double_buffer},
                {"symmetric_memory", &to.symmetric_memory},
                {"debug_log", &to.debug_log},
                {"sync_before_reduce", &to.sync_before_reduce},
                {"sync_after_reduce", &to.sync_after_reduce},
                {"sync_before_allgather", &to.sync_before_allgather},
                {"sync_after_allgather", &to.sync_after_allgather},
                {"keep_int_input_tensors", &to.keep_int_input_tensors},
                {"keep_all_input_tensors", &to.keep_all_input_tensors}});
  return to;
}

HybridEngineConfig read_hybrid_engine(const SectionValues& section) {
  HybridEngineConfig to;
  section.read({{"enabled", &to.enabled},
                {"max_out_tokens", &to.max_out_tokens},
                {"inference_tp_size", &to.inference_tp_size},
                {"release_inference_cache", &to.release_inference_cache},
                {"pin_parameters", &to.pin_parameters},
                {"tp_gather_partition_size", &to.tp_gather_partition_size},
                {"enable_cuda_graph", &to.enable_cuda_graph}});
  return to;
}

}  // namespace

ParallelismConfig read_parallelism(const SectionValues& root) {
  ParallelismConfig to;
  root.read({{"sequence_parallel_size", &to.sequence_parallel_size},
             {"data_parallel_size", &to.data_parallel_size},
             {"use_data_before_expert_parallelism", &to.use_data_before_expert_parallelism}});
  to.pipeline = read_pipeline(root.section("pipeline"));
  to.tensor_parallel = read_tensor_parallel(root.section("tensor_parallel"));
  to.expert_parallel = read_expert_parallel(root.section("expert_parallel"));
  to.compile = read_compile(root.section("compile"));
  to.hybrid_engine = read_hybrid_engine(root.section("hybrid_engine"));
  return to;
}

}  // namespace capstan

#include "core/config/typed/zero.hpp"

#include <algorithm>

namespace capstan {
namespace {

std::optional<OffloadParamConfig> read_offload_param(const SectionValues& section) {
  OffloadParamConfig to;
  section.read({{"device", &to.device},
                {"nvme_path", &to.nvme_path},
                {"pin_memory", &to.pin_memory},
                {"buffer_count", &to.buffer_count},
                {"buffer_size", &to.buffer_size},
                {"max_in_cpu", &to.max_in_cpu}});
  return section.present() ? std::optional(to) : std::nullopt;
}

std::optional<OffloadOptimizerConfig> read_offload_optimizer(const SectionValues& section) {
  OffloadOptimizerConfig to;
  section.read({{"device", &to.device},
                {"nvme_path", &to.nvme_path},
                {"pin_memory", &to.pin_memory},
                {"buffer_count", &to.buffer_count},
                {"fast_init", &to.fast_init},
                {"ratio", &to.ratio},
                {"pipeline_read", &to.pipeline_read},
                {"pipeline_write", &to.pipeline_write},
                {"super_offload", &to.super_offload},
                {"cpuadam_cores_perc", &to.cpuadam_cores_perc}});
  return section.present() ? std::optional(to) : std::nullopt;
}

std::optional<ZenflowConfig> read_zenflow(const SectionValues& section) {
  ZenflowConfig to;
  section.read({{"topk_ratio", &to.topk_ratio},
                {"select_strategy", &to.select_strategy},
                {"select_interval", &to.select_interval},
                {"update_interval", &to.update_interval},
                {"overlap_step", &to.overlap_step},
                {"offload", &to.offload},
                {"auto_ratio", &to.auto_ratio},
                {"full_warm_up_rounds", &to.full_warm_up_rounds},
                {"pt_reserved_cores_perc", &to.pt_reserved_cores_perc}});
  return section.present() ? std::optional(to) : std::nullopt;
}

std::optional<LocoConfig> read_loco(const SectionValues& section) {
  LocoConfig to;
  section.read({{"err_beta", &to.err_beta}, {"reset_T", &to.reset_T}});
  return section.present() ? std::optional(to) : std::nullopt;
}

void read_stage3(const SectionValues& section, ZeroConfig& to) {
  section.read({{"stage3_max_live_parameters", &to.stage3_max_live_parameters},
                {"stage3_max_reuse_distance", &to.stage3_max_reuse_distance},
                {"stage3_prefetch_bucket_size", &to.stage3_prefetch_bucket_size},
                {"stage3_param_persistence_threshold", &to.stage3_param_persistence_threshold},
                {"stage3_model_persistence_threshold", &to.stage3_model_persistence_threshold},
                {"stage3_gather_16bit_weights_on_model_save", &to.stage3_gather_16bit_weights_on_model_save},
                {"stage3_module_granularity_threshold", &to.stage3_module_granularity_threshold},
                {"stage3_use_all_reduce_for_fetch_params", &to.stage3_use_all_reduce_for_fetch_params},
                {"stage3_allgather_sequential", &to.stage3_allgather_sequential},
                {"memory_efficient_linear", &to.memory_efficient_linear},
                {"pipeline_loading_checkpoint", &to.pipeline_loading_checkpoint},
                {"override_module_apply", &to.override_module_apply},
                {"log_trace_cache_warnings", &to.log_trace_cache_warnings},
                {"enable_sanity_checks", &to.enable_sanity_checks},
                {"save_muon_momentum_buffer_in_memory", &to.save_muon_momentum_buffer_in_memory}});
  section.section("leaf_module")
      .read({{"classes", &to.leaf_classes}, {"names", &to.leaf_names}, {"name_suffixes", &to.leaf_name_suffixes}});
}

}  // namespace

ZeroConfig read_zero(const SectionValues& section) {
  ZeroConfig to;
  section.read({{"stage", &to.stage},
                {"sub_group_size", &to.sub_group_size},
                {"allgather_partitions", &to.allgather_partitions},
                {"allgather_bucket_size", &to.allgather_bucket_size},
                {"overlap_comm", &to.overlap_comm},
                {"reduce_scatter", &to.reduce_scatter},
                {"reduce_bucket_size", &to.reduce_bucket_size},
                {"contiguous_gradients", &to.contiguous_gradients},
                {"grad_hooks", &to.grad_hooks},
                {"round_robin_gradients", &to.round_robin_gradients},
                {"load_from_fp32_weights", &to.load_from_fp32_weights},
                {"ignore_unused_parameters", &to.ignore_unused_parameters},
                {"compute_grad_norm", &to.compute_grad_norm},
                {"use_multi_rank_bucket_allreduce", &to.use_multi_rank_bucket_allreduce},
                {"zero_hpz_partition_size", &to.zero_hpz_partition_size},
                {"zero_quantized_weights", &to.zero_quantized_weights},
                {"zero_quantized_nontrainable_weights", &to.zero_quantized_nontrainable_weights},
                {"zero_quantized_gradients", &to.zero_quantized_gradients},
                {"mics_shard_size", &to.mics_shard_size},
                {"mics_hierarchical_params_gather", &to.mics_hierarchical_params_gather}});
  // 0 elements a tile means one parameter a tile.
  to.sub_group_size = std::max<std::int64_t>(to.sub_group_size, 1);
  read_stage3(section, to);
  to.zeropp_loco_param = read_loco(section.section("zeropp_loco_param"));
  to.offload_param = read_offload_param(section.section("offload_param"));
  to.offload_optimizer = read_offload_optimizer(section.section("offload_optimizer"));
  to.zenflow = read_zenflow(section.section("zenflow"));
  return to;
}

AioConfig read_aio(const SectionValues& section) {
  AioConfig to;
  section.read({{"block_size", &to.block_size},
                {"queue_depth", &to.queue_depth},
                {"intra_op_parallelism", &to.intra_op_parallelism},
                {"single_submit", &to.single_submit},
                {"overlap_events", &to.overlap_events},
                {"use_gds", &to.use_gds}});
  return to;
}

}  // namespace capstan

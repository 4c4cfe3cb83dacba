#include "core/config/typed/zero.hpp"

#include <algorithm>

namespace capstan {
namespace {

std::optional<OffloadParamConfig> read_offload_param(const SectionValues& section) {
  OffloadParamConfig to;
  section.read({{"device", &to.device},
                {"buffer_count", &to.buffer_count},
                {"buffer_size", &to.buffer_size},
                {"max_in_cpu", &to.max_in_cpu}});
  return section.present() ? std::optional(to) : std::nullopt;
}

std::optional<OffloadOptimizerConfig> read_offload_optimizer(const SectionValues& section) {
  OffloadOptimizerConfig to;
  section.read({{"device", &to.device},
                {"buffer_count", &to.buffer_count},
                {"ratio", &to.ratio},
                {"pipeline_read", &to.pipeline_read},
                {"pipeline_write", &to.pipeline_write}});
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
                {"stage3_gather_16bit_weights_on_model_save", &to.stage3_gather_16bit_weights_on_model_save}});
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
                {"grad_hooks", &to.grad_hooks},
                {"load_from_fp32_weights", &to.load_from_fp32_weights},
                {"ignore_unused_parameters", &to.ignore_unused_parameters},
                {"compute_grad_norm", &to.compute_grad_norm},
                {"zero_hpz_partition_size", &to.zero_hpz_partition_size},
                {"zero_quantized_weights", &to.zero_quantized_weights},
                {"zero_quantized_nontrainable_weights", &to.zero_quantized_nontrainable_weights},
                {"zero_quantized_gradients", &to.zero_quantized_gradients}});
  // 0 elements a tile means one parameter a tile.
  to.sub_group_size = std::max<std::int64_t>(to.sub_group_size, 1);
  read_stage3(section, to);
  to.zeropp_loco_param = read_loco(section.section("zeropp_loco_param"));
  to.offload_param = read_offload_param(section.section("offload_param"));
  to.offload_optimizer = read_offload_optimizer(section.section("offload_optimizer"));
  return to;
}

}  // namespace capstan

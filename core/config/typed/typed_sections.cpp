#include "core/config/typed/typed_sections.hpp"

namespace capstan {
namespace {

void read_precision_sections(const SectionValues& root, Config& config) {
  config.fp16 = read_fp16(root.section("fp16"));
  config.bf16 = read_bf16(root.section("bf16"));
  config.amp = read_amp(root.section("amp"));
  config.torch_autocast = read_torch_autocast(root.section("torch_autocast"));
  config.data_types = read_data_types(root.section("data_types"));
}

void read_report_sections(const SectionValues& root, Config& config) {
  ReportConfig& report = config.report;
  root.read({{"steps_per_print", &report.steps_per_print},
             {"wall_clock_breakdown", &report.wall_clock_breakdown},
             {"memory_breakdown", &report.memory_breakdown},
             {"dump_state", &report.dump_state},
             {"log_level", &report.log_level}});
  root.section("timers")
      .section("throughput")
      .read({{"enabled", &report.throughput_timer}, {"synchronized", &report.throughput_synchronized}});
  config.comms_logger = read_comms_logger(root.section("comms_logger"));
  config.flops_profiler = read_flops_profiler(root.section("flops_profiler"));
  config.tensorboard = read_tensorboard(root.section("tensorboard"));
  config.wandb = read_wandb(root.section("wandb"));
  config.csv_monitor = read_csv_monitor(root.section("csv_monitor"));
  config.comet = read_comet(root.section("comet"));
}

void read_model_sections(const SectionValues& root, Config& config) {
  config.activation_checkpointing = read_activation_checkpointing(root.section("activation_checkpointing"));
  config.sparse_attention = read_sparse_attention(root.section("sparse_attention"));
  config.compression = read_compression(root.section("compression_training"));
  config.eigenvalue = read_eigenvalue(root.section("quantize_training").section("eigenvalue"));
  config.progressive_layer_drop = read_progressive_layer_drop(root.section("progressive_layer_drop"));
  config.weight_quantization = read_weight_quantization(root.section("weight_quantization"));
  config.parallelism = read_parallelism(root);
}

}  // namespace

void read_typed_sections(const SectionValues& root, Config& config) {
  root.read({{"gradient_clipping", &config.gradient_clipping},
             {"managed_gradient_accumulation", &config.managed_gradient_accumulation},
             {"dataloader_drop_last", &config.dataloader_drop_last},
             {"graph_harvesting", &config.graph_harvesting},
             {"vocabulary_size", &config.vocabulary_size}});
  config.communication = read_communication(root);
  config.zero = read_zero(root.section("zero_optimization"));
  config.aio = read_aio(root.section("aio"));
  read_precision_sections(root, config);
  read_report_sections(root, config);
  read_model_sections(root, config);
  config.autotuning = read_autotuning(root.section("autotuning"));
  config.data_efficiency = read_data_efficiency(root.section("data_efficiency"));
  config.curriculum_learning = read_legacy_curriculum(root.section("curriculum_learning"));
  config.elasticity = read_elasticity(root.section("elasticity"));
  config.checkpoint = read_checkpoint_config(root.section("checkpoint"));
  config.nebula = read_nebula(root.section("nebula"));
  config.datastates_ckpt = read_datastates(root.section("datastates_ckpt"));
}

}  // namespace capstan

#include "core/config/typed/typed_sections.hpp"

namespace capstan {
namespace {

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
}

}  // namespace

void read_typed_sections(const SectionValues& root, Config& config) {
  root.read({{"gradient_clipping", &config.gradient_clipping}, {"dataloader_drop_last", &config.dataloader_drop_last}});
  config.communication = read_communication(root);
  config.zero = read_zero(root.section("zero_optimization"));
  config.torch_autocast = read_torch_autocast(root.section("torch_autocast"));
  read_report_sections(root, config);
  config.compression = read_compression(root.section("compression_training"));
  config.autotuning = read_autotuning(root.section("autotuning"));
  config.data_efficiency = read_data_efficiency(root.section("data_efficiency"));
  config.elasticity = read_elasticity(root.section("elasticity"));
  config.checkpoint = read_checkpoint_config(root.section("checkpoint"));
  config.datastates_ckpt = read_datastates(root.section("datastates_ckpt"));
}

}  // namespace capstan

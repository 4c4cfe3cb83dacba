#include "core/config/typed/data_efficiency.hpp"

namespace capstan {
namespace {

CurriculumSchedule read_schedule(const SectionValues& section) {
  CurriculumSchedule to;
  section.read({{"total_curriculum_step", &to.total_curriculum_step},
                {"difficulty_step", &to.difficulty_step},
                {"root_degree", &to.root_degree},
                {"difficulty", &to.difficulty},
                {"max_step", &to.max_step}});
  return to;
}

CurriculumMetricConfig read_metric(const SectionValues& section) {
  CurriculumMetricConfig to;
  section.read({{"index_to_sample_path", &to.index_to_sample_path},
                {"index_to_metric_path", &to.index_to_metric_path},
                {"difficulty_type", &to.difficulty_type},
                {"clustering_type", &to.clustering_type},
                {"min_difficulty", &to.min_difficulty},
                {"max_difficulty", &to.max_difficulty},
                {"schedule_type", &to.schedule_type}});
  to.schedule = read_schedule(section.section("schedule_config"));
  return to;
}

DynamicBatchingConfig read_dynamic_batching(const SectionValues& section) {
  DynamicBatchingConfig to;
  section.read({{"enabled", &to.enabled},
                {"max_tokens", &to.max_tokens},
                {"metrics_path", &to.metrics_path},
                {"lr_scaling_method", &to.lr_scaling_method},
                {"min_batch_size", &to.min_batch_size},
                {"max_batch_size", &to.max_batch_size},
                {"sequence_picking_order", &to.sequence_picking_order},
                {"verbose", &to.verbose}});
  return to;
}

DataSamplingConfig read_data_sampling(const SectionValues& section) {
  DataSamplingConfig to;
  section.read({{"enabled", &to.enabled},
                {"num_epochs", &to.num_epochs},
                {"num_workers", &to.num_workers},
                {"pin_memory", &to.pin_memory}});
  const SectionValues curriculum = section.section("curriculum_learning");
  curriculum.read({{"enabled", &to.curriculum_enabled}, {"data_cluster_path", &to.data_cluster_path}});
  for (const auto& [name, metric] : curriculum.section("curriculum_metrics").named("<metric>"))
    to.curriculum_metrics.emplace(name, read_metric(metric));
  to.dynamic_batching = read_dynamic_batching(section.section("dynamic_batching"));
  return to;
}

RandomLtdConfig read_random_ltd(const SectionValues& section) {
  RandomLtdConfig to;
  section.read({{"enabled", &to.enabled},
                {"total_layer_num", &to.total_layer_num},
                {"random_ltd_layer_num", &to.random_ltd_layer_num},
                {"random_ltd_layer_id", &to.random_ltd_layer_id},
                {"model_mask_name", &to.model_mask_name},
                {"model_type", &to.model_type},
                {"hidden_state_order", &to.hidden_state_order}});
  const SectionValues schedule = section.section("random_ltd_schedule");
  schedule.read({{"min_value", &to.min_value}, {"max_value", &to.max_value}, {"schedule_type", &to.schedule_type}});
  schedule.section("schedule_config").read({{"require_steps", &to.require_steps}, {"seq_per_step", &to.seq_per_step}});
  section.section("layer_token_lr_schedule").read({{"enabled", &to.layer_token_lr_schedule}});
  return to;
}

}  // namespace

DataEfficiencyConfig read_data_efficiency(const SectionValues& section) {
  DataEfficiencyConfig to;
  section.read({{"enabled", &to.enabled}, {"seed", &to.seed}});
  to.data_sampling = read_data_sampling(section.section("data_sampling"));
  const SectionValues routing = section.section("data_routing");
  routing.read({{"enabled", &to.data_routing_enabled}});
  to.random_ltd = read_random_ltd(routing.section("random_ltd"));
  return to;
}

LegacyCurriculumConfig read_legacy_curriculum(const SectionValues& section) {
  LegacyCurriculumConfig to;
  section.read({{"enabled", &to.enabled},
                {"curriculum_type", &to.curriculum_type},
                {"min_difficulty", &to.min_difficulty},
                {"max_difficulty", &to.max_difficulty},
                {"schedule_type", &to.schedule_type}});
  to.schedule = read_schedule(section.section("schedule_config"));
  return to;
}

}  // namespace capstan

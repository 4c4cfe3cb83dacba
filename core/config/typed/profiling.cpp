#include "core/config/typed/profiling.hpp"

namespace capstan {
namespace {

std::optional<ModelInfoConfig> read_model_info(const SectionValues& section) {
  ModelInfoConfig to;
  section.read({{"profile", &to.profile}, {"num_params", &to.num_params}, {"hidden_size", &to.hidden_size}});
  return section.present() ? std::optional(to) : std::nullopt;
}

}  // namespace

AutotuningConfig read_autotuning(const SectionValues& section) {
  AutotuningConfig to;
  section.read({{"enabled", &to.enabled},
                {"results_dir", &to.results_dir},
                {"exps_dir", &to.exps_dir},
                {"overwrite", &to.overwrite},
                {"metric", &to.metric},
                {"start_profile_step", &to.start_profile_step},
                {"end_profile_step", &to.end_profile_step},
                {"fast", &to.fast},
                {"max_train_batch_size", &to.max_train_batch_size},
                {"min_train_batch_size", &to.min_train_batch_size},
                {"max_train_micro_batch_size_per_gpu", &to.max_train_micro_batch_size_per_gpu},
                {"min_train_micro_batch_size_per_gpu", &to.min_train_micro_batch_size_per_gpu},
                {"mp_size", &to.mp_size},
                {"num_tuning_micro_batch_sizes", &to.num_tuning_micro_batch_sizes},
                {"tuner_type", &to.tuner_type},
                {"tuner_early_stopping", &to.tuner_early_stopping},
                {"tuner_num_trials", &to.tuner_num_trials},
                {"metric_path", &to.metric_path},
                {"model_info_path", &to.model_info_path}});
  section.section("arg_mappings").read_named(to.arg_mappings);
  to.model_info = read_model_info(section.section("model_info"));
  return to;
}

}  // namespace capstan

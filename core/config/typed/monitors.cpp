#include "core/config/typed/monitors.hpp"

namespace capstan {

TensorboardConfig read_tensorboard(const SectionValues& section) {
  TensorboardConfig to;
  section.read({{"enabled", &to.enabled}, {"output_path", &to.output_path}, {"job_name", &to.job_name}});
  return to;
}

WandbConfig read_wandb(const SectionValues& section) {
  WandbConfig to;
  section.read({{"enabled", &to.enabled}, {"group", &to.group}, {"team", &to.team}, {"project", &to.project}});
  return to;
}

CsvMonitorConfig read_csv_monitor(const SectionValues& section) {
  CsvMonitorConfig to;
  section.read({{"enabled", &to.enabled}, {"output_path", &to.output_path}, {"job_name", &to.job_name}});
  return to;
}

CometConfig read_comet(const SectionValues& section) {
  CometConfig to;
  section.read({{"enabled", &to.enabled},
                {"workspace", &to.workspace},
                {"project", &to.project},
                {"samples_log_interval", &to.samples_log_interval},
                {"experiment_name", &to.experiment_name},
                {"api_key", &to.api_key},
                {"experiment_key", &to.experiment_key},
                {"online", &to.online},
                {"mode", &to.mode}});
  return to;
}

}  // namespace capstan

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config/typed/section_values.hpp"

namespace capstan {

struct TensorboardConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
  bool operator==(const TensorboardConfig&) const = default;
};

struct WandbConfig {
  bool enabled = false;
  std::optional<std::string> group, team;
  std::string project = "deepspeed";
  bool operator==(const WandbConfig&) const = default;
};

struct CsvMonitorConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
  bool operator==(const CsvMonitorConfig&) const = default;
};

struct CometConfig {
  bool enabled = false;
  std::optional<std::string> workspace, project, experiment_name, api_key, experiment_key;
  std::int64_t samples_log_interval = 100;
  std::optional<bool> online;
  std::optional<std::string> mode;  // get, create, get_or_create
  bool operator==(const CometConfig&) const = default;
};

TensorboardConfig read_tensorboard(const SectionValues& section);
WandbConfig read_wandb(const SectionValues& section);
CsvMonitorConfig read_csv_monitor(const SectionValues& section);
CometConfig read_comet(const SectionValues& section);

}  // namespace capstan

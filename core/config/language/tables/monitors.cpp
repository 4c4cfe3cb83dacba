#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> monitors() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"tensorboard.enabled", "boolean", "false", "", 0, "001 002 DS",
     "Write events for TensorBoard on rank 0."},
    {"tensorboard.output_path", "path", "\"\"", "", 0, "001 002 DS",
     "Base folder; empty: the folder of the launch."},
    {"tensorboard.job_name", "string", "\"DeepSpeedJobName\"", "", 0, "001 002 DS",
     "Folder below it."},
    {"wandb.enabled", "boolean", "false", "", 0, "002 page DS",
     "Write events to Weights & Biases."},
    {"wandb.group", "string", "", "", 0, "002 page DS",
     "Group of runs."},
    {"wandb.team", "string", "", "", 0, "002 page DS",
     "Team: the entity that owns the run."},
    {"wandb.project", "string", "\"deepspeed\"", "", 0, "002 page DS",
     "Project."},
    {"csv_monitor.enabled", "boolean", "false", "", 0, "002 DS",
     "Write events to CSV files."},
    {"csv_monitor.output_path", "path", "\"\"", "", 0, "002 DS",
     "Base folder; empty: the folder of the launch."},
    {"csv_monitor.job_name", "string", "\"DeepSpeedJobName\"", "", 0, "002 DS",
     "Folder below it."},
    {"comet.enabled", "boolean", "false", "", 0, "002 DS",
     "Write events to Comet."},
    {"comet.workspace", "string", "", "", 0, "002 page DS",
     "Workspace."},
    {"comet.project", "string", "", "", 0, "002 DS",
     "Project."},
    {"comet.samples_log_interval", "integer", "100", "> 0", 0, "002 DS",
     "Submit each metric at most once in so many samples."},
    {"comet.experiment_name", "string", "", "", 0, "002 DS",
     "Name of the experiment."},
    {"comet.api_key", "string", "", "", 0, "002 DS",
     "Credential; better in the environment than in a file."},
    {"comet.experiment_key", "string", "", "", 0, "002 DS",
     "Experiment to attach to: 32 to 50 letters and digits."},
    {"comet.online", "boolean", "", "", 0, "002 DS",
     "Send to the server; absent: true."},
    {"comet.mode", "string", "", "get|create|get_or_create", 0, "002 DS",
     "Attach to an experiment or create one; absent: get_or_create."},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections

#include "cli/launch/elastic_plan.hpp"

#include <algorithm>
#include <filesystem>
#include <variant>

#include "cli/command_line.hpp"
#include "cli/config_arguments.hpp"
#include "cli/usage_error.hpp"
#include "cli/version.hpp"
#include "core/config/resolve/elastic.hpp"
#include "core/errors.hpp"
#include "core/registry/build_id.hpp"

namespace capstan::cli {
namespace {

/// The configuration that the processes are going to train with.
ConfigArguments config_of(const LaunchArguments& launch) {
  const std::vector<std::string>& command = launch.command;
  if (command.front() == "train") {
    if (!launch.config.file.empty()) {
      throw UsageError(
          "launch: --config stands before 'train', which takes it itself: capstan launch --elastic ... train "
          "--config " +
          launch.config.file + ".");
    }
    std::vector<const char*> words{"capstan"};
    for (const std::string& word : command) words.push_back(word.c_str());
    const CommandLine line = read_command_line(static_cast<int>(words.size()), words.data());
    return std::get<TrainArguments>(line.arguments.value()).config;
  }
  const bool own = command.front().find('/') == std::string::npos;
  if (own) {
    throw UsageError("launch: --elastic goes with 'train' and with programs, and the command is '" + command.front() +
                     "'.");
  }
  if (launch.config.file.empty()) {
    throw UsageError("launch: --elastic needs the configuration that the program '" + command.front() +
                     "' trains with. Give it as --config FILE, before the program, which trains by capstan::Run or, in "
                     "Python, capstan.Run.");
  }
  return launch.config;
}

std::string list_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text.empty() ? "none" : text;
}

/// Version 0.2 counts whole nodes.
bool fills_nodes(const ElasticityConfig& settings, std::int64_t processes) {
  return settings.version < 0.15 || processes % settings.devices_per_node == 0;
}

void check_nodes(const ElasticityConfig& settings, std::int64_t processes) {
  if (fills_nodes(settings, processes)) return;
  const std::int64_t node = settings.devices_per_node, below = processes / node * node;
  throw ConfigError("launch: " + std::to_string(processes) +
                    (processes == 1 ? " process does not fill nodes of " : " processes do not fill nodes of ") +
                    std::to_string(node) +
                    " (elasticity.num_gpus_per_node), and version 0.2 of elasticity counts whole nodes. Start " +
                    (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + node) +
                    " (-n, --elastic), or set elasticity.num_gpus_per_node to 1, or elasticity.version to 0.1.");
}

/// The sizes from `least` to `most` that have the batch of `batch`.
std::vector<std::int64_t> sizes_of(const ElasticityConfig& settings, std::int64_t batch, std::int64_t least,
                                   std::int64_t most) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = least; size <= most; ++size) {
    if (!fills_nodes(settings, size)) continue;
    try {
      // Version 0.2 makes another batch for a size that is not in its table: that would be another training.
      if (elastic_batch(settings, size).train_batch == batch) sizes.push_back(size);
    } catch (const ConfigError&) {
      // No batch for it: the training never has this size.
    }
  }
  return sizes;
}

/// The largest size from `least` to `most` that has a batch; `most` where none has, which then says so.
std::int64_t largest_size(const ElasticityConfig& settings, std::int64_t least, std::int64_t most) {
  for (std::int64_t size = most; size >= least; --size) {
    if (!fills_nodes(settings, size)) continue;
    try {
      elastic_batch(settings, size);
      return size;
    } catch (const ConfigError&) {
      // It may have one with fewer.
    }
  }
  return most;
}

std::string launched(const std::vector<std::string>& command, const ConfigText& config) {
  std::string text = version_text() + "\nprogram " + build_id_of("/proc/self/exe") + "\nfolder " +
                     std::filesystem::current_path().string();
  for (const std::string& word : command) text += "\nword " + word;
  return text + "\nconfiguration " + config.text;
}

}  // namespace

ElasticPlan elastic_plan(const LaunchArguments& arguments) {
  const ConfigArguments given = config_of(arguments);
  const ConfigText text = config_text(given);
  const Config config = read_elastic_config(text, config_context(given));
  const ElasticityConfig& settings = config.elasticity;
  const LaunchArguments::Elastic& asked = *arguments.elastic;
  ElasticPlan plan;
  plan.most = asked.most;
  plan.spares = arguments.spares;
  plan.witness = arguments.witness;
  plan.launched = launched(arguments.command, text);
  // Of several hosts all processes together must have a number of the table, whenever they train.
  const bool several_hosts = !arguments.rdzv.empty();
  const std::int64_t largest = largest_size(settings, asked.least, asked.most);
  plan.processes = arguments.processes > 0 || arguments.witness ? arguments.processes : largest;
  const std::int64_t together = several_hosts ? largest : plan.processes;
  check_nodes(settings, together);
  plan.train_batch = elastic_batch(settings, together).train_batch;
  plan.sizes = sizes_of(settings, plan.train_batch, asked.least, asked.most);
  plan.min_time = std::chrono::minutes(settings.min_time);
  plan.wait = std::chrono::duration<double>(config.run.elastic.wait);
  plan.saves = !config.run.save_dir.empty();
  if (std::find(plan.sizes.begin(), plan.sizes.end(), together) == plan.sizes.end()) {
    throw ConfigError("launch: elasticity allows no " + std::to_string(together) + " processes: a global batch of " +
                      std::to_string(plan.train_batch) + " is divided by " + list_of(plan.sizes) + " of " +
                      std::to_string(asked.least) + " to " + std::to_string(asked.most) + ".");
  }
  return plan;
}

}  // namespace capstan::cli

#include <algorithm>
#include <string>

#include "core/config/rules/section_rules.hpp"

namespace capstan {
namespace {

constexpr const char* kStageKey = "zero_optimization.stage";

std::string stage_of(const Effective& values) { return std::to_string(values.integer(kStageKey)); }

void check_stages(const Effective& values, Problems& problems) {
  const std::int64_t stage = values.integer(kStageKey);
  const std::string optimizer = values.text(std::string(kOffloadOptimizer) + ".device");
  if (offloads(values, kOffloadOptimizer) && stage == 0) {
    problems.error(kOffloadOptimizer,
                   "offload to '" + optimizer +
                       "' needs stage 1, 2 or 3, and the stage is 0. Set zero_optimization.stage, or the device to "
                       "none.");
  } else if (optimizer == "nvme" && stage < 3) {
    problems.error(std::string(kOffloadOptimizer) + ".device",
                   "offload to 'nvme' needs stage 3, and the stage is " + stage_of(values) + ". Use cpu, or stage 3.");
  }
  if (values.find("capstan.offload.parameters") && stage < 3) {
    problems.error("capstan.offload.parameters",
                   "needs stage 3, and the stage is " + stage_of(values) +
                       ", where every rank holds all parameters. Set zero_optimization.stage to 3, or remove it.");
  }
  if (values.given(std::string(kOffloadOptimizer) + ".cpuadam_cores_perc") && stage < 3) {
    problems.error(std::string(kOffloadOptimizer) + ".cpuadam_cores_perc",
                   "needs stage 3, and the stage is " + stage_of(values) + ".");
  }
}

/// What the optimizer keeps for each element: its states, the master and the gradient.
std::vector<std::string> values_of_an_element(const Config& config, const ComponentManifest& optimizer) {
  std::vector<std::string> names;
  for (const StateSpec& state : optimizer.states_with(config.optimizer->params)) {
    const Json* switched = state.when.empty() ? nullptr : config.optimizer->params.find(state.when);
    const bool off = switched && ((switched->is_bool() && !switched->as_bool()) ||
                                  (switched->is_number() && switched->as_number() == 0));
    if (state.like == StateSpec::Like::kParameter && !off) names.push_back(state.name);
  }
  names.push_back("the master");
  names.push_back("the gradient");
  return names;
}

void check_buffer_count(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems) {
  const std::string path = std::string(kOffloadOptimizer) + ".buffer_count";
  if (!config.optimizer || !config.optimizer_offload || !values.given(path) || !values.find(path)) return;
  const ComponentRef optimizer = plugins.find("optimizer", config.optimizer->type, config.optimizer->device);
  if (!optimizer) return;
  const std::vector<std::string> names = values_of_an_element(config, *optimizer.component);
  const std::int64_t given = values.integer(path);
  if (given >= static_cast<std::int64_t>(names.size())) return;
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i)
    list += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  problems.error(path, std::to_string(given) + " is too few for '" + config.optimizer->type + "', whose update needs " +
                           list + " of an element at a time. Give at least " + std::to_string(names.size()) + ".");
}

void check_read_ahead(const Effective& values, const Config& config, Problems& problems) {
  if (!config.parameter_offload || !offloads(values, kOffloadParameters)) return;
  for (const char* key : {".buffer_count", ".buffer_size"}) {
    if (values.integer(kOffloadParameters + std::string(key), 1) > 0) continue;
    problems.error(kOffloadParameters + std::string(key),
                   "must be above 0, got 0: it bounds what is read ahead. Leave it out for the default.");
  }
}

}  // namespace

std::int64_t least_buffers(const Config& config, const ComponentManifest& optimizer) {
  return static_cast<std::int64_t>(values_of_an_element(config, optimizer).size());
}

void check_offload(const Effective& values, const Config& config, const PluginIndex& plugins, Problems& problems) {
  check_stages(values, problems);
  check_buffer_count(values, config, plugins, problems);
  check_read_ahead(values, config, problems);
  constexpr std::int64_t kSector = 512;
  const std::string block = "aio.block_size";
  const bool said =
      std::any_of(problems.all().begin(), problems.all().end(), [&](const Problem& one) { return one.path == block; });
  if (const std::int64_t bytes = values.integer(block, kSector); !said && bytes % kSector != 0) {
    problems.error(
        block, "must be a multiple of 512, got " + std::to_string(bytes) + ": storage reads and writes whole sectors.");
  }
}

}  // namespace capstan

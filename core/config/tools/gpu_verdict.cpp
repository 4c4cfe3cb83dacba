#include "core/config/tools/gpu_verdict.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "core/config/resolve/effective.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

constexpr const char* kDeviceKey = "capstan.run.device";
constexpr std::size_t kMostNamed = 6;

/// "zero_optimization.stage 3", "zero_optimization.offload_param"
std::string key_and_value(const std::string& path, const Effective& values) {
  const Json* value = values.find(path);
  return value && (value->is_number() || value->is_string()) ? path + " " + shown(*value) : path;
}

std::string and_list(const std::vector<std::string>& names) {
  std::string text;
  const std::size_t count = std::min(names.size(), kMostNamed);
  for (std::size_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count && names.size() <= kMostNamed;
    text += (i == 0 ? "" : last ? " and " : ", ") + names[i];
  }
  return text + (names.size() > kMostNamed ? " and " + std::to_string(names.size() - kMostNamed) + " more" : "");
}

}  // namespace

std::optional<Problem> refused_on_gpus(const ConfigText& text, ConfigContext context, const Config& accepted,
                                       const PluginIndex& plugins) {
  Json effective = accepted.effective;
  auto origins = accepted.origins;
  const Effective values(effective, origins);
  const bool is_left_open = values.text(kDeviceKey) == "auto";
  if (!is_left_open || accepted.device != "cpu" || accepted.batch.world_size <= 1) return std::nullopt;
  context.overrides.emplace_back(kDeviceKey, "cuda");
  std::vector<std::string> refused;
  const Problems problems = read_config(text, context, plugins).problems;
  for (const Problem& problem : problems.all()) {
    if (problem.severity != Problem::Severity::kError) continue;
    std::string name = key_and_value(problem.path, values);
    if (std::find(refused.begin(), refused.end(), name) == refused.end()) refused.push_back(std::move(name));
  }
  if (refused.empty()) return std::nullopt;
  return Problem{Problem::Severity::kNotice, kDeviceKey,
                 "no GPU is visible here, so this is checked for CPUs. GPUs would refuse " + and_list(refused) +
                     ": --device cuda shows the reasons."};
}

}  // namespace capstan

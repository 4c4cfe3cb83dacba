#include "core/model/batch_norm_types.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace capstan {
namespace {

/// "blocks.0.norm." of its running mean or variance; nothing for another buffer.
std::optional<std::string> module_of_statistic(std::string_view buffer) {
  for (const std::string_view name : {"running_mean", "running_var"}) {
    if (!buffer.ends_with(name)) continue;
    const std::string_view prefix = buffer.substr(0, buffer.size() - name.size());
    if (prefix.empty() || prefix.ends_with('.')) return std::string(prefix);
  }
  return std::nullopt;
}

}  // namespace

void match_batch_norm_types(const Model& model) {
  std::unordered_map<std::string_view, const at::Tensor*> parameters;
  for (const NamedTensor& parameter : model.parameters()) parameters.emplace(parameter.name, &parameter.tensor);
  for (const NamedTensor& buffer : model.buffers()) {
    const auto module = module_of_statistic(buffer.name);
    if (!module || buffer.tensor.dim() != 1) continue;
    const std::string weight = *module + "weight";
    const auto found = parameters.find(weight);
    if (found == parameters.end() || found->second->sizes() != buffer.tensor.sizes()) continue;
    at::Tensor statistic = buffer.tensor;
    const at::ScalarType type = found->second->scalar_type();
    if (statistic.scalar_type() != type) statistic.set_data(statistic.to(type));
  }
}

}  // namespace capstan

#include <algorithm>
#include <functional>
#include <numeric>
#include <regex>

#include "core/registry/manifest.hpp"

namespace capstan {

bool StateSpec::is_integral() const { return dtype == "int64" || dtype == "uint8" || dtype == "int8"; }

std::int64_t StateSpec::values_for(std::int64_t elements, std::span<const std::int64_t> shape) const {
  switch (like) {
    case Like::kScalar:
      return 1;
    case Like::kBlock:
      return (elements + block - 1) / block;
    case Like::kRow:
      return elements == 0 ? 0 : elements / shape[shape.size() - 1];
    case Like::kColumn:
      return elements == 0 ? 0 : elements / shape[shape.size() - 2];
    case Like::kParameter:
    case Like::kShare:
      break;
  }
  return elements;
}

bool StateSpec::is_for(const std::string& parameter, std::span<const std::int64_t> shape,
                       capstan_param_role role) const {
  if (!when_roles.empty() && std::find(when_roles.begin(), when_roles.end(), role) == when_roles.end()) return false;
  const auto dims = static_cast<std::int64_t>(shape.size());
  if (!when_dims.empty() && std::find(when_dims.begin(), when_dims.end(), dims) == when_dims.end()) return false;
  const std::int64_t numel = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  if (numel < when_min_numel || numel > when_max_numel) return false;
  if (when_names.empty()) return true;
  return std::any_of(name_patterns.begin(), name_patterns.end(),
                     [&](const std::string& pattern) { return std::regex_search(parameter, std::regex(pattern)); });
}

std::vector<StateSpec> ComponentManifest::states_with(const Json& values) const {
  std::vector<StateSpec> states = state;
  for (StateSpec& spec : states) {
    const Json* given = spec.when_names.empty() ? nullptr : values.find(spec.when_names);
    if (given == nullptr) continue;
    const Json::Array patterns = given->is_array() ? given->as_array() : Json::Array{*given};
    for (const Json& pattern : patterns) {
      if (pattern.is_string()) spec.name_patterns.push_back(pattern.as_string());
    }
  }
  return states;
}

}  // namespace capstan

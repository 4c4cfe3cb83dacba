#include "core/registry/parameter_role.hpp"

#include <algorithm>

namespace capstan {

const std::vector<std::string>& parameter_role_names() {
  static const std::vector<std::string> kNames = {"other", "matrix", "embedding", "head", "norm", "bias"};
  return kNames;
}

const char* parameter_role_name(capstan_param_role role) { return parameter_role_names()[role].c_str(); }

std::optional<capstan_param_role> parameter_role_named(std::string_view name) {
  const auto& names = parameter_role_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<capstan_param_role>(found - names.begin());
}

}  // namespace capstan

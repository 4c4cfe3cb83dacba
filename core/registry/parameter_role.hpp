#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/plugin.h"

namespace capstan {

/// "embedding", as manifests, models and `capstan model show` write it.
const char* parameter_role_name(capstan_param_role role);
std::optional<capstan_param_role> parameter_role_named(std::string_view name);
/// All names, in the order of the enumeration.
const std::vector<std::string>& parameter_role_names();

}  // namespace capstan

#pragma once

#include <string>
#include <vector>

#include "core/registry/manifest_reader.hpp"
#include "core/schema/param_rule.hpp"
#include "core/schema/schema.hpp"

namespace capstan {

/// Reads one entry of `params`: what the parameter may be, and its default, which must be that too.
KeySpec read_param(const std::string& name, const ManifestTable& table);

/// Reads the `rules` of a component with these parameters.
std::vector<ParamRule> read_rules(const ManifestTable& component, const std::vector<KeySpec>& params);

}  // namespace capstan

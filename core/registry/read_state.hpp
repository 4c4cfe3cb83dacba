#pragma once

#include <vector>

#include "core/registry/manifest.hpp"
#include "core/registry/manifest_reader.hpp"

namespace capstan {

/// One table of an optimizer's `state` list. `params`: the component's parameters, which a state may name. Throws
/// PluginError for what contradicts itself.
StateSpec read_state(const ManifestTable& table, const std::vector<KeySpec>& params);

}  // namespace capstan

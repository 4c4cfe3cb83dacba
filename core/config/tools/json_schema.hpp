#pragma once

#include "core/registry/plugin_index.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// One JSON Schema (draft 2020-12) for the language and the parameters of every plugin of the index. It accepts and
/// refuses what the validator does, but for rules between keys, repeated keys and autotuning's lists.
Json json_schema(const PluginIndex& plugins);

}  // namespace capstan

#pragma once

#include <string>
#include <string_view>

#include "core/registry/plugin_index.hpp"

namespace capstan {

/// What a key or a plugin's parameter means, its type, range and default, since when it exists and what reads it.
/// `path` as in documents; "optimizer.params.lr" lists the optimizers that have it. Throws ConfigError with the nearest
/// name when there is no such key.
std::string explain_key(std::string_view path, const PluginIndex& plugins);

/// The reference of the language as a Markdown page, from the same tables.
std::string reference_page();

}  // namespace capstan

#pragma once

#include <optional>

#include "core/config/config.hpp"
#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// The document of a text in JSON, TOML or YAML, nothing of it checked yet; a file of accelerate as its configuration.
/// Returns nothing, after an error, for a text that cannot be read.
std::optional<Json> config_document(const ConfigText& text, Problems& problems);
/// Reads the document as config_document() does, and puts the overrides of the context in.
std::optional<Json> overridden_document(const ConfigText& text, const ConfigContext& context, Problems& problems);

}  // namespace capstan

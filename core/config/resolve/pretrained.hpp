#pragma once

#include <string>

#include "core/config/typed/config.hpp"
#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Where capstan.model.type is hf:FOLDER or FILE.gguf, puts there the model that takes such a configuration, the
/// configuration as params.config, in which keys that the document gives win, and the folder or file as weights, unless
/// the document gives that key. A folder or file that cannot be read, or is of a model type that no plugin takes, is an
/// error, and the document has no model then.
void resolve_pretrained(Json& document, const PluginIndex& plugins, Problems& problems);

/// The folder or file whose weights a fresh start takes, of capstan.model; empty: none.
std::string initial_weights(const Config& config);

}  // namespace capstan

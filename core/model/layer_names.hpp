#pragma once

#include <string>
#include <vector>

#include "core/model/model.hpp"

namespace capstan {

/// The names of a model's layers, in the order in which forward runs them: what its describe() says under
/// "layer_names", an array of texts. Without that, modules that one path numbers from 0, all of one class: "blocks.0",
/// "blocks.1". Of several such rows the longest counts, and of equally long ones the one that the model tells of first;
/// a row within a module of another row is none. Empty where neither is there. Throws PluginError for "layer_names"
/// that are no array of texts, or have one twice.
std::vector<std::string> layer_names(const Model& model);

}  // namespace capstan

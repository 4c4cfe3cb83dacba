#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/model/model.hpp"

// What a model's facts say of how its tensors are saved.

namespace capstan {

/// Marks the buffers that the facts name under "non_persistent_buffers", an array of texts: the model's constructor
/// makes their values, so that checkpoints and exports leave them out. Throws PluginError, which `where` opens, for
/// what is not the name of a buffer.
void find_persistence(std::vector<NamedTensor>& buffers, const Json& facts, const std::string& where);

/// The facts' "tied", an object: a further name of a tensor, and the name that the model shows it under. Throws
/// PluginError, which `where` opens, where a further name is a tensor of its own or the other one is not shown.
std::map<std::string, std::string> read_tied(const std::vector<NamedTensor>& parameters,
                                             const std::vector<NamedTensor>& buffers, const Json& facts,
                                             const std::string& where);

}  // namespace capstan

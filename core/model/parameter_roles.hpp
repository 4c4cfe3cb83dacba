#pragma once

#include <string>
#include <vector>

#include "core/model/model.hpp"
#include "core/model/parameter_classes.hpp"

namespace capstan {

/// Fills in what each parameter is to its model. First counts what the model says itself, in its `facts`: "roles", an
/// object with a role for the name of a parameter. Then the class of the parameter's module: one named for embeddings
/// or norms makes embeddings and norms. Of the rest, a name with "bias" is a bias, two dimensions or more are a matrix,
/// and fewer are "other". The head is the last matrix of a Linear in the model's order where it gives logits: it has as
/// many rows as the facts' "vocab_size", or the shape of an embedding, or no embedding is there at all. Throws
/// PluginError, which `where` opens, for "roles" that name no parameter or no role.
void find_roles(std::vector<NamedTensor>& parameters, const ParameterClasses& classes, const Json& facts,
                const std::string& where);

}  // namespace capstan

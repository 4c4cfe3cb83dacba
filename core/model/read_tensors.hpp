#pragma once

#include <string>

#include "core/model/model.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// The first of the texts that `facts` list under "required" which a model does not list under "reads" of its
/// description; empty where it reads all. `facts`: those of a data set, whose batches have tensors without which
/// samples do not mean what they mean.
std::string first_unread(const Json& facts, const Model& model);

/// Throws RuntimeFault for a batch of rows of several documents, which "document_ids" tells apart, and a model that
/// does not list the name under "reads".
void refuse_unread_documents(const Batch& batch, const Model& model);

}  // namespace capstan

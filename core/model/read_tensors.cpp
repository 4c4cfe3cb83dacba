#include "core/model/read_tensors.hpp"

#include "core/errors.hpp"

namespace capstan {
namespace {

constexpr const char* kDocuments = "document_ids";

bool lists(const Json& facts, const char* under, const Json& name) {
  const Json* list = facts.find(under);
  if (list == nullptr || !list->is_array()) return false;
  for (const Json& one : list->as_array()) {
    if (one == name) return true;
  }
  return false;
}

}  // namespace

std::string first_unread(const Json& facts, const Model& model) {
  const Json* required = facts.find("required");
  if (required == nullptr || !required->is_array()) return "";
  const Json told = model.describe();
  for (const Json& name : required->as_array()) {
    if (name.is_string() && !lists(told, "reads", name)) return name.as_string();
  }
  return "";
}

void refuse_unread_documents(const Batch& batch, const Model& model) {
  if (!batch.tensors.contains(kDocuments) || lists(model.describe(), "reads", Json(kDocuments))) return;
  throw RuntimeFault(
      std::string("the batch has rows of several documents, which '") + kDocuments + "' tells apart, and model '" +
      model.description() + "' does not say that it reads '" + kDocuments +
      "': tokens would see other documents of their rows. List the name under \"reads\" in describe() of a "
      "model that keeps documents apart, or leave the tensor out of the batch.");
}

}  // namespace capstan

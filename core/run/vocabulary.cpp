#include "core/run/vocabulary.hpp"

namespace capstan {

Vocabulary vocabulary_of(const Model& model) {
  const Json facts = model.describe();
  Vocabulary vocabulary;
  if (const Json* size = facts.find("vocab_size"); size && size->is_integer()) vocabulary.size = size->as_integer();
  const Json* hf = facts.find("hf");
  const Json* config = hf ? hf->find("config") : nullptr;
  const Json* positions = facts.find("positions");
  if (positions && positions->is_integer()) vocabulary.positions = positions->as_integer();
  const Json* end = config ? config->find("eos_token_id") : nullptr;
  if (end && end->is_integer()) vocabulary.stop.push_back(end->as_integer());
  if (end && end->is_array()) {
    for (const Json& id : end->as_array()) {
      if (id.is_integer()) vocabulary.stop.push_back(id.as_integer());
    }
  }
  return vocabulary;
}

}  // namespace capstan

#include "core/checkpoint/deepspeed/notes.hpp"

#include "core/log.hpp"

namespace capstan {

void log_notes(const Json& state, const char* list, const std::string& where) {
  const Json* notes = state.find(list);
  if (notes == nullptr) return;
  for (const Json& note : notes->as_array()) log::warning(where + ": " + note.as_string());
}

}  // namespace capstan

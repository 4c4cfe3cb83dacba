#pragma once

#include <string>

#include "core/text/json.hpp"

namespace capstan {

/// Members of a checkpoint's state that list, as sentences, what of another program's checkpoint cannot be taken over:
/// of the run, and of the weights.
inline constexpr const char *kNotes = "notes", *kWeightNotes = "weight_notes";

/// Logs the sentences of one of the lists as warnings that begin with `where`. A state without the list logs nothing.
void log_notes(const Json& state, const char* list, const std::string& where);

}  // namespace capstan

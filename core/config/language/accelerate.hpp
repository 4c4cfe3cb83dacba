#pragma once

#include <optional>

#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Puts what a file of Hugging Face accelerate says of DeepSpeed in the language's own keys, with a notice that says
/// so; "auto" stands for what accelerate leaves to the program. A document with a key of the language, or without those
/// of accelerate, stays as it is. Returns nothing, after an error, for a file that names another configuration or that
/// says nothing of DeepSpeed.
std::optional<Json> read_accelerate(Json document, Problems& problems);

}  // namespace capstan

#pragma once

#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {

/// What a run is to be told of a checkpoint whose masters, or optimizer's states, are of another type than those that
/// the run keeps: a sentence each. Empty where nothing is.
std::vector<std::string> notes_on_types(const CheckpointContents& contents, ParameterStore& store);

}  // namespace capstan

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/text/json.hpp"

// The names under which checkpoints hold the states of a list of components, such as the observers of a run.

namespace capstan {

/// "random_ltd" for the first component of a type, "random_ltd 2" for the second. `earlier`: how many components of the
/// type come before. The name does not depend on components of other types.
std::string state_key(const std::string& type, std::size_t earlier);

/// States by state_key(). Earlier releases saved {"<position> <type>": state}, which is renamed; other states stay.
Json states_by_type(const Json& states);

/// Sentences, without where they were found, on states that do not meet. `kind`: "observer". `saved`: names of states
/// in a checkpoint. `kept`: names of the states that this run keeps.
std::vector<std::string> unmatched_states(const std::string& kind, const std::vector<std::string>& saved,
                                          const std::vector<std::string>& kept);

}  // namespace capstan

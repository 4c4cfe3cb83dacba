#pragma once

#include "core/config/typed/config.hpp"

namespace capstan {

/// Puts what the host program says into the document, where the file says nothing or "auto". Values on which the two
/// disagree are one error that lists them all. Paths that were filled are marked by mark_program_values.
void apply_program_values(Json& document, const ConfigContext& context, Problems& problems);

/// Gives the values that the program filled the origin "program".
void mark_program_values(const ConfigContext& context, const Json& as_written,
                         std::map<std::string, std::string>& origins);

}  // namespace capstan

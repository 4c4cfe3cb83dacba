#pragma once

#include <string>
#include <vector>

#include "core/config/language/validator.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// Gives sections with a misspelt name the name that was meant, in place, so that their content is checked too. Returns
/// the names as they were written: they are still errors.
/// `foreign` are top-level sections that plugins own.
std::vector<UnknownKey> correct_section_names(Json& document, const std::vector<std::string>& foreign);

}  // namespace capstan

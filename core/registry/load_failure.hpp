#pragma once

#include <string>
#include <string_view>

namespace capstan {

/// What dlopen's text means for `file`, and what to do: a sentence that opens with the file.
std::string explain_load_failure(const std::string& file, std::string_view dlerror_text);

}  // namespace capstan

#pragma once

#include <filesystem>
#include <string>

#include "core/text/json.hpp"

namespace capstan {

/// Reads all of a file or a pipe. Throws RuntimeFault naming it: a folder, or what cannot be read.
std::string read_text_file(const std::filesystem::path& file);

/// Parses JSON. Throws RuntimeFault that begins with `where`.
Json parse_json_text(const std::string& text, const std::string& where);

}  // namespace capstan

#pragma once

#include <string>

namespace capstan {

/// The build id of an ELF file, in hexadecimal; empty when it has none or cannot be read.
std::string build_id_of(const std::string& file);

}  // namespace capstan

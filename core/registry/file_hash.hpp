#pragma once

#include <filesystem>
#include <string>

namespace capstan {

/// SHA-256 of a file's bytes as 64 lower-case hexadecimal digits. Throws PluginError.
std::string sha256_of_file(const std::filesystem::path& file);

}  // namespace capstan

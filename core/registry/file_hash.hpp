#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace capstan {

/// SHA-256 of a file's bytes as 64 lower-case hexadecimal digits. Throws PluginError.
std::string sha256_of_file(const std::filesystem::path& file);

/// SHA-256 of the bytes that `next` gives, call after call, until it gives none.
std::string sha256_of(const std::function<std::span<const std::byte>()>& next);

}  // namespace capstan

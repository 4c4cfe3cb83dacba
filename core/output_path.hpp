#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "capstan/sdk/output_path.hpp"

namespace capstan {

/// sdk::output_path(). Throws RuntimeFault.
sdk::OutputPath output_path(const std::filesystem::path& path);

/// Calls `write` with a path beside the file, and renames what it has written there to the file: until then an older
/// file stays as it was. A link stays, and its target is replaced; `write` gets a device or a pipe as it is. Throws
/// what `write` throws, and RuntimeFault.
void replace_file(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write);

/// Writes a text in this way.
void replace_file(const std::filesystem::path& path, std::string_view text);

}  // namespace capstan

#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace capstan {

/// Where `capstan plugins install` keeps the SHA-256 of a plugin's file, in the form that sha256sum reads.
std::filesystem::path pin_of(const std::filesystem::path& plugin);

/// The SHA-256 that is pinned beside a plugin's file, in lower case; nothing where there is no pin. Throws PluginError
/// for a pin that cannot be read or is not one.
std::optional<std::string> read_pin(const std::filesystem::path& plugin);

/// The line of such a file.
std::string pin_text(const std::filesystem::path& plugin, const std::string& sha256);

}  // namespace capstan

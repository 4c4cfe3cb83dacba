#pragma once

#include <string>
#include <string_view>

namespace capstan {

/// HMAC-SHA-256 of a text as 64 lower-case hexadecimal digits.
std::string hmac_sha256(std::string_view key, std::string_view text);

/// Whether two texts are equal, in a time that does not tell where they differ.
bool equal_secretly(std::string_view first, std::string_view second);

}  // namespace capstan

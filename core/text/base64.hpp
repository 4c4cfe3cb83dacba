#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace capstan {

/// Base64 of RFC 4648, section 4, with padding.
std::string encode_base64(std::string_view bytes);
/// The bytes; padding may be missing. Nothing where a character is not a digit of base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace capstan

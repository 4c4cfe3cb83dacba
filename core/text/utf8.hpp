#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace capstan {

/// Bytes of the valid UTF-8 sequence at the front of `text`, which is not empty; 0 where none is there.
std::size_t utf8_sequence_length(std::string_view text);

/// Offset of the first byte that no valid UTF-8 sequence begins at; a NUL byte counts as invalid too.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

/// `text` with U+FFFD in the place of each byte that no valid UTF-8 sequence holds.
std::string as_utf8(std::string text);

}  // namespace capstan

#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace capstan {

/// Offset of the first byte that no valid UTF-8 sequence begins at; a NUL byte counts as invalid too.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

}  // namespace capstan

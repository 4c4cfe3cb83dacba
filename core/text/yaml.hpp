#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "core/text/json.hpp"
#include "core/text/problem.hpp"

namespace capstan {

inline constexpr std::size_t kLargestYaml = std::size_t{1} << 20;  // bytes

/// True for a text whose first line, comments aside, is "---" or "key:" with the key outside quotes: JSON has neither.
bool looks_like_yaml(std::string_view text);

/// Reads a YAML document: a mapping with names for keys. Plain scalars are null, booleans and numbers as YAML 1.1 has
/// them, 1e-5 among the numbers, and strings. Members keep their order and the offsets of their keys. Aliases, tags of
/// one's own, several documents and repeated keys are errors with line and column; nothing is returned then. Safe for
/// any input.
std::optional<Json> parse_yaml(std::string_view text, Problems& problems);

}  // namespace capstan

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"
#include "core/text/places.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Limits of a configuration's text; what is larger is refused by these numbers.
inline constexpr std::size_t kLargestText = 16 * 1024 * 1024;  // bytes
inline constexpr std::size_t kDeepestNesting = 200;
inline constexpr std::size_t kLongestKey = 1000;  // bytes
inline constexpr std::size_t kMostValues = 20'000;

/// A piece of a relaxed text that JSON spells otherwise, and its spelling there.
struct TextFix {
  std::size_t offset = 0, size = 0;
  std::string text;
};

/// Strict JSON with the meaning of a relaxed text, and where each part of it came from.
struct StrictJson {
  std::string text;
  std::vector<TextFix> fixes;  // with which the relaxed text is JSON, its comments aside; in order
  /// Offset in the relaxed text of each key, each scalar and each opening bracket, in order.
  std::vector<std::size_t> origins;
};

/// Strict JSON from JSON as people write it. Accepted, each with one warning: comments, trailing commas, members
/// separated by a line break alone, single-quoted strings, None, True, False. A byte-order mark is accepted in silence.
/// Duplicate keys, templates and everything else are errors with line and column; nothing is returned then.
std::optional<StrictJson> make_strict(std::string_view text, Problems& problems);

/// Reports each key that an object has twice with both places, and keeps the first of them.
void reject_duplicates(Json& value, const TextPlaces& places, Problems& problems);

/// The value of a relaxed JSON text; members and elements know their offset in it (a member's is that of its key).
std::optional<Json> parse_relaxed(std::string_view text, Problems& problems);

}  // namespace capstan

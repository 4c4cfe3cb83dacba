#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

/// Insertions, deletions, replacements and swaps of neighbours that turn one into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// How far apart two names are to a reader: 0 when they differ in letter case, '-' and '_' only, 1 when their words
/// stand in another order, otherwise the edit distance without those signs.
std::size_t name_distance(std::string_view a, std::string_view b);

/// The largest name_distance at which `typed` still counts as a slip for another name; grows with its length.
std::size_t slip_limit(std::string_view typed);

/// The candidate nearest to `typed`, the first among equals, or nothing when none is near enough to be meant.
std::optional<std::string> nearest_name(std::string_view typed, const std::vector<std::string>& known);

/// " Did you mean 'x'?" for the nearest candidate, or nothing when none is near.
std::string suggestion(std::string_view typed, const std::vector<std::string>& known);

}  // namespace capstan

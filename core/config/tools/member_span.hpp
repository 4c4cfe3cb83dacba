#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace capstan {

/// Where a member of an object stands in a text of relaxed JSON: offsets, each end one past the last byte.
struct MemberSpan {
  std::size_t key_begin = 0, key_end = 0;
  std::size_t value_begin = 0, value_end = 0;
};

/// The member at a dotted path of a text that parse_relaxed has accepted.
std::optional<MemberSpan> find_member(std::string_view text, std::string_view path);

/// The first offset from `at` on that is neither blank nor in a comment.
std::size_t skip_blanks_and_comments(std::string_view text, std::size_t at);

}  // namespace capstan

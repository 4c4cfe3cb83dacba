#include "core/text/tokenizer/split_behavior.hpp"

#include <algorithm>
#include <map>

namespace capstan::tokenizer {
namespace {

struct Part {
  Range range;
  bool is_delimiter;
};

std::vector<Part> parts_of(const Piece& piece, const std::vector<Range>& delimiters, bool inverted) {
  std::vector<Part> parts;
  parts.reserve(2 * delimiters.size() + 1);
  std::size_t at = 0;
  for (const Range& delimiter : delimiters) {
    if (delimiter.begin > at) parts.push_back({{at, delimiter.begin}, inverted});
    parts.push_back({delimiter, !inverted});
    at = delimiter.end;
  }
  if (at < piece.text.size()) parts.push_back({{at, piece.text.size()}, inverted});
  return parts;
}

/// Joins neighbours that are both delimiters, or both not. Delimiters at the front join nothing before them.
std::vector<Range> contiguous(const std::vector<Part>& parts) {
  std::vector<Range> joined;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.is_delimiter == previous && !joined.empty()) {
      joined.back().end = part.range.end;
    } else {
      joined.push_back(part.range);
    }
    previous = part.is_delimiter;
  }
  return joined;
}

/// Joins each delimiter to the part before it, unless a delimiter is there already.
std::vector<Range> merged_with_previous(const std::vector<Part>& parts) {
  std::vector<Range> joined;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.is_delimiter && !previous && !joined.empty()) {
      joined.back().end = part.range.end;
    } else {
      joined.push_back(part.range);
    }
    previous = part.is_delimiter;
  }
  return joined;
}

std::vector<Range> merged_with_next(const std::vector<Part>& parts) {
  std::vector<Range> joined;
  bool previous = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->is_delimiter && !previous && !joined.empty()) {
      joined.back().begin = part->range.begin;
    } else {
      joined.push_back(part->range);
    }
    previous = part->is_delimiter;
  }
  std::reverse(joined.begin(), joined.end());
  return joined;
}

void add_part(const Piece& piece, const Range& range, Pieces& out) {
  if (range.size() == 0) return;
  out.push_back({piece.text.substr(range.begin, range.size()), piece.at_front && range.begin == 0});
}

}  // namespace

SplitBehavior split_behavior(const Field& field) {
  static const std::map<std::string, SplitBehavior> kNames = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  const auto found = kNames.find(field.text());
  if (found != kNames.end()) return found->second;
  field.fail("'" + field.text() +
             "' is not a behavior: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous.");
}

void split_piece(const Piece& piece, const std::vector<Range>& delimiters, bool inverted, SplitBehavior behavior,
                 Pieces& out) {
  if (behavior == SplitBehavior::kIsolated) {
    std::size_t at = 0;
    for (const Range& delimiter : delimiters) {
      add_part(piece, {at, delimiter.begin}, out);
      add_part(piece, delimiter, out);
      at = delimiter.end;
    }
    return add_part(piece, {at, piece.text.size()}, out);
  }
  const std::vector<Part> parts = parts_of(piece, delimiters, inverted);
  if (behavior == SplitBehavior::kRemoved) {
    for (const Part& part : parts) {
      if (!part.is_delimiter) add_part(piece, part.range, out);
    }
    return;
  }
  const std::vector<Range> joined = behavior == SplitBehavior::kContiguous       ? contiguous(parts)
                                    : behavior == SplitBehavior::kMergedWithNext ? merged_with_next(parts)
                                                                                 : merged_with_previous(parts);
  for (const Range& range : joined) add_part(piece, range, out);
}

}  // namespace capstan::tokenizer

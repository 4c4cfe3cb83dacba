#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/vocabulary.hpp"

namespace capstan::tokenizer {

/// Remembers the tokens of short pieces, most of which come again. One thread uses it.
class PieceCache {
 public:
  /// Appends the tokens of `piece` to `ids`: those remembered, or else those that encode() appends.
  template <class Encode>
  void encode(std::string_view piece, Ids& ids, Encode&& encode) {
    if (piece.size() > kLongest) return encode();
    Entry& entry = entries_[std::hash<std::string_view>()(piece) % kEntries];
    if (entry.holds(piece)) {
      ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const std::size_t first = ids.size();
    encode();
    entry.take(piece, std::span(ids).subspan(first));
  }

 private:
  static constexpr std::size_t kEntries = 1 << 15, kLongest = 38, kMostIds = 12;

  struct Entry {
    bool holds(std::string_view piece) const { return std::string_view(text, size) == piece; }
    void take(std::string_view piece, std::span<const Id> of) {
      if (of.size() > kMostIds) return;
      size = static_cast<std::uint8_t>(piece.copy(text, kLongest));
      count = static_cast<std::uint8_t>(of.size());
      std::copy(of.begin(), of.end(), ids);
    }

    std::uint8_t size = 0, count = 0;
    char text[kLongest];
    Id ids[kMostIds];
  };

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace capstan::tokenizer

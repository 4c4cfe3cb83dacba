#pragma once

#include <cstdint>
#include <vector>

#include "core/text/tokenizer/vocabulary.hpp"

namespace capstan::tokenizer {

/// Which pairs of tokens BPE merges, with their ranks: an open-addressed hash table.
class MergeTable {
 public:
  struct Merge {
    std::uint64_t pair;
    std::uint32_t rank;  // the least is merged first
    Id into;
  };

  /// Room for `merges` pairs.
  explicit MergeTable(std::size_t merges);
  /// A pair that is there already gets the new rank.
  void add(Id left, Id right, std::uint32_t rank, Id into);
  /// The merge of a pair, or null.
  const Merge* find(Id left, Id right) const {
    const Merge& slot = slots_[place(pair_of(left, right))];
    return slot.pair == kFree ? nullptr : &slot;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  static std::uint64_t pair_of(Id left, Id right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::uint64_t pair) const {
    constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    std::size_t at = (pair * kGoldenRatio) >> shift_;
    while (slots_[at].pair != kFree && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Merge> slots_;
  int shift_;
};

}  // namespace capstan::tokenizer

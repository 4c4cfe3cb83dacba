#include "core/text/tokenizer/merge_table.hpp"

#include <bit>

namespace capstan::tokenizer {

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2), Merge{kFree, 0, kNoId}), shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::add(Id left, Id right, std::uint32_t rank, Id into) {
  const std::uint64_t pair = pair_of(left, right);
  slots_[place(pair)] = {pair, rank, into};
}

}  // namespace capstan::tokenizer

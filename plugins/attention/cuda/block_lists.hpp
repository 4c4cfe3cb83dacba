#pragma once

#include <cstdint>
#include <vector>

#include "capstan/sdk/attention_kernel.hpp"

namespace capstan::attention {

/// The lists of a BlockIndex.
struct BlockLists {
  std::vector<int> column_starts, columns, row_starts, rows;
};

inline BlockLists lists_of(const sdk::AttentionLayout& layout) {
  BlockLists lists;
  lists.column_starts.push_back(0);
  lists.row_starts.push_back(0);
  for (std::uint32_t head = 0; head < layout.heads; ++head) {
    for (std::uint32_t of = 0; of < layout.blocks; ++of) {
      for (std::uint32_t other = 0; other < layout.blocks; ++other) {
        if (layout.is_set(head, of, other)) lists.columns.push_back(static_cast<int>(other));
        if (layout.is_set(head, other, of)) lists.rows.push_back(static_cast<int>(other));
      }
      lists.column_starts.push_back(static_cast<int>(lists.columns.size()));
      lists.row_starts.push_back(static_cast<int>(lists.rows.size()));
    }
  }
  return lists;
}

}  // namespace capstan::attention

// The rules by which threads of a GPU find their work, on the CPU.
#include "plugins/attention/cuda/block_index.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "plugins/attention/cuda/block_lists.hpp"

namespace capstan::attention {
namespace {

struct Drawn {
  std::uint32_t heads = 2, block, blocks;
  bool causal;
  int tokens;
  std::vector<std::uint8_t> cells;
  BlockLists lists;
  BlockIndex index;

  Drawn(std::mt19937& random, std::uint32_t of_block)
      : block(of_block), blocks(1 + random() % 9), causal(random() % 2 == 0) {
    tokens = static_cast<int>(block * blocks - random() % block);
    cells.resize(std::size_t{heads} * blocks * blocks);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      cells[i] = random() % 3 != 0 && (!causal || i % blocks <= i / blocks % blocks);
    }
    lists = lists_of({heads, block, blocks, causal, cells.data()});
    index.block = static_cast<int>(block);
    index.blocks = static_cast<int>(blocks);
    index.causal = causal;
    index.column_starts = lists.column_starts.data();
    index.columns = lists.columns.data();
    index.row_starts = lists.row_starts.data();
    index.rows = lists.rows.data();
  }
  bool wanted(int head, int query, int key) const {
    const auto of = static_cast<int>(block), n = static_cast<int>(blocks);
    return cells[static_cast<std::size_t>((head * n + query / of) * n + key / of)] != 0 && (!causal || key <= query);
  }
};

using Pairs = std::map<std::pair<int, int>, int>;  // query and key: how often

/// The loops of the kernels that own queries.
Pairs by_query(const Drawn& drawn, int head) {
  Pairs pairs;
  const BlockIndex& index = drawn.index;
  for (int number = 0; number < index.tiles(); ++number) {
    const BlockIndex::Tokens tile = index.tile(number, drawn.tokens);
    for (int query = tile.begin; query < tile.end; ++query) {
      for (int c = index.first_column(head, tile.of_block); c < index.end_column(head, tile.of_block); ++c) {
        const int column = index.columns[c];
        for (int key = index.first_token(column); key < index.end_token(column, drawn.tokens); ++key) {
          if (index.joins(query, key)) ++pairs[{query, key}];
        }
      }
    }
  }
  return pairs;
}

/// Those of the kernel that owns keys.
Pairs by_key(const Drawn& drawn, int head) {
  Pairs pairs;
  const BlockIndex& index = drawn.index;
  for (int number = 0; number < index.tiles(); ++number) {
    const BlockIndex::Tokens tile = index.tile(number, drawn.tokens);
    for (int key = tile.begin; key < tile.end; ++key) {
      for (int r = index.first_row(head, tile.of_block); r < index.end_row(head, tile.of_block); ++r) {
        const int row = index.rows[r];
        for (int query = index.first_token(row); query < index.end_token(row, drawn.tokens); ++query) {
          if (index.joins(query, key)) ++pairs[{query, key}];
        }
      }
    }
  }
  return pairs;
}

TEST(BlockIndex, LeadsThreadsToEachScoreOnce) {
  std::mt19937 random(7);
  for (const std::uint32_t block : {1, 8, 16, 31, 32, 33, 64, 100}) {
    for (int i = 0; i < 8; ++i) {
      const Drawn drawn(random, block);
      for (int head = 0; head < 2; ++head) {
        Pairs wanted;
        for (int query = 0; query < drawn.tokens; ++query) {
          for (int key = 0; key < drawn.tokens; ++key) {
            if (drawn.wanted(head, query, key)) wanted[{query, key}] = 1;
          }
        }
        ASSERT_EQ(by_query(drawn, head), wanted) << "block " << block;
        ASSERT_EQ(by_key(drawn, head), wanted) << "block " << block;
      }
    }
  }
}

TEST(BlockIndex, GivesEveryTokenOneTile) {
  std::mt19937 random(8);
  for (const std::uint32_t block : {1, 7, 32, 40, 129}) {
    const Drawn drawn(random, block);
    std::vector<int> owners(static_cast<std::size_t>(drawn.tokens), 0);
    for (int number = 0; number < drawn.index.tiles(); ++number) {
      const BlockIndex::Tokens tile = drawn.index.tile(number, drawn.tokens);
      EXPECT_LE(tile.end - tile.begin, kTileTokens);
      for (int token = tile.begin; token < tile.end; ++token) {
        ++owners[static_cast<std::size_t>(token)];
        EXPECT_EQ(token / static_cast<int>(block), tile.of_block);
      }
    }
    EXPECT_EQ(std::set<int>(owners.begin(), owners.end()), std::set<int>{1}) << block;
  }
}

}  // namespace
}  // namespace capstan::attention

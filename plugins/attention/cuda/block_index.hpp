#pragma once

#ifdef __CUDACC__
#define CAPSTAN_DEVICE_RULE __host__ __device__
#else
#define CAPSTAN_DEVICE_RULE
#endif

namespace capstan::attention {

/// Tokens that a group of threads works on at once.
constexpr int kTileTokens = 32;

/// A layout's cells as lists, for rows and for columns. The rules by which threads find their work: the same on both
/// sides, so that a machine without a GPU can try them.
struct BlockIndex {
  int block = 1, blocks = 0;
  bool causal = false;
  const int* column_starts = nullptr;  // [heads * blocks + 1]: where the columns of a row begin
  const int* columns = nullptr;
  const int* row_starts = nullptr;  // [heads * blocks + 1]: where the rows of a column begin
  const int* rows = nullptr;

  struct Tokens {
    int of_block, begin, end;  // end <= begin: nothing to do
  };
  CAPSTAN_DEVICE_RULE int tiles_of_block() const { return (block + kTileTokens - 1) / kTileTokens; }
  CAPSTAN_DEVICE_RULE int tiles() const { return blocks * tiles_of_block(); }
  /// The tokens of a tile, which lie in one block.
  CAPSTAN_DEVICE_RULE Tokens tile(int number, int tokens) const {
    const int of_block = number / tiles_of_block();
    const int begin = of_block * block + number % tiles_of_block() * kTileTokens;
    const int block_end = (of_block + 1) * block < tokens ? (of_block + 1) * block : tokens;
    const int end = begin + kTileTokens < block_end ? begin + kTileTokens : block_end;
    return {of_block, begin, end};
  }
  CAPSTAN_DEVICE_RULE int first_token(int of_block) const { return of_block * block; }
  CAPSTAN_DEVICE_RULE int end_token(int of_block, int tokens) const {
    return (of_block + 1) * block < tokens ? (of_block + 1) * block : tokens;
  }
  CAPSTAN_DEVICE_RULE int first_column(int head, int row) const { return column_starts[head * blocks + row]; }
  CAPSTAN_DEVICE_RULE int end_column(int head, int row) const { return column_starts[head * blocks + row + 1]; }
  CAPSTAN_DEVICE_RULE int first_row(int head, int column) const { return row_starts[head * blocks + column]; }
  CAPSTAN_DEVICE_RULE int end_row(int head, int column) const { return row_starts[head * blocks + column + 1]; }
  /// Whether a query of a set cell has a score with a key of it.
  CAPSTAN_DEVICE_RULE bool joins(int query, int key) const { return !causal || key <= query; }
};

}  // namespace capstan::attention

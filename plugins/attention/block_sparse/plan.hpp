#pragma once

#include <cstdint>
#include <vector>

#include "capstan/sdk/attention_kernel.hpp"

namespace capstan::attention {

/// Keys that a tile is computed with at once, at most.
constexpr std::uint32_t kPanelKeys = 512;
/// Queries of a tile, at most.
constexpr std::uint32_t kTileQueries = 128;

/// Tokens of a block of queries: the whole block where it is no larger than a tile.
struct Slice {
  std::uint32_t row = 0;             // the block
  std::uint32_t begin = 0, end = 0;  // tokens of the sequence, which may end earlier
};

/// Keys that follow each other.
struct Run {
  std::uint32_t begin = 0, end = 0;  // tokens of the sequence; the last block may end earlier
};

/// Keys that are gathered into one matrix, or, where they are one run, read where they lie; and who attends to them.
struct Panel {
  std::vector<Run> runs;                          // ascending
  std::uint32_t first_slice = 0, last_slice = 0;  // of the group's; those between may lack some of the keys
};

/// Queries that are computed together, with all their keys.
struct Group {
  std::vector<Slice> slices;
  std::vector<Panel> panels;
  /// For each slice and panel, the runs of keys of that panel that the slice does not attend to; causality leaves out
  /// others by itself.
  std::vector<std::vector<std::vector<Run>>> unset;  // [slice][panel]
};

struct HeadPlan {
  std::vector<Group> groups;
};

/// What the kernel makes of a layout: rows whose columns are equal, or so nearly equal that larger products outweigh
/// the cells that they compute in vain, are computed together.
struct Plan {
  std::uint32_t block = 0, blocks = 0;
  bool causal = false;
  std::vector<HeadPlan> distinct;       // layouts, each once
  std::vector<std::uint32_t> of_heads;  // the layout of each head

  const HeadPlan& of(std::int64_t head) const { return distinct[of_heads[static_cast<std::size_t>(head)]]; }
};

Plan make_plan(const sdk::AttentionLayout& layout);

}  // namespace capstan::attention

#include "core/config/language/tables/sections.hpp"

namespace capstan::sections {

std::span<const Key> sparse_attention() {
  // clang-format off
  static constexpr Key kKeys[] = {
    {"sparse_attention", "object", "", "", kOptional, "001 002 DS",
     "Block-sparse attention in the place of scaled_dot_product_attention.", "the layout of attention"},
    {"sparse_attention.mode", "string", "\"fixed\"", "dense|fixed|variable|bigbird|bslongformer", 0, "001 002 DS",
     "Family of layouts.", "the layout of attention"},
    {"sparse_attention.block", "integer", "16", "> 0", 0, "001 002 DS",
     "Tokens of a block; a sequence's last one may have fewer.", "the layout of attention"},
    {"sparse_attention.different_layout_per_head", "boolean", "false", "", 0, "001 002 DS",
     "One layout per head.", "the layout of attention"},
    {"sparse_attention.num_local_blocks", "integer", "4", "> 0", 0, "001 002 DS",
     "Blocks in a local window; a multiple of num_global_blocks.", "the layout of attention"},
    {"sparse_attention.num_global_blocks", "integer", "1", ">= 0", 0, "001 002 DS",
     "Consecutive blocks that act as global.", "the layout of attention"},
    {"sparse_attention.attention", "string", "\"bidirectional\"", "unidirectional|bidirectional", 0, "001 002 DS",
     "Causal or not; a causal call of the model stays causal either way.", "the layout of attention"},
    {"sparse_attention.horizontal_global_attention", "boolean", "false", "", 0, "001 002 DS",
     "Global blocks also attend to all; bidirectional attention only.", "the layout of attention"},
    {"sparse_attention.num_different_global_patterns", "integer", "1", "> 0", 0, "001 002 DS",
     "How many global layouts there are over the heads.", "the layout of attention"},
    {"sparse_attention.num_random_blocks", "integer", "0", ">= 0", 0, "001 002 DS",
     "Random blocks per row.", "the layout of attention"},
    {"sparse_attention.local_window_blocks", "integer[]", "[4]", "> 0", 0, "001 002 DS",
     "Sizes of windows in blocks; the last repeats.", "the layout of attention"},
    {"sparse_attention.global_block_indices", "integer[]", "[0]", ">= 0", 0, "001 002 DS",
     "Global blocks, or the starts of global windows.", "the layout of attention"},
    {"sparse_attention.global_block_end_indices", "integer[]", "", "> 0", 0, "001 002 DS",
     "Exclusive ends of the global windows.", "the layout of attention"},
    {"sparse_attention.num_sliding_window_blocks", "integer", "3", ">= 0", 0, "001 002 DS",
     "Width of the sliding window.", "the layout of attention"},
  };
  // clang-format on
  return kKeys;
}

}  // namespace capstan::sections

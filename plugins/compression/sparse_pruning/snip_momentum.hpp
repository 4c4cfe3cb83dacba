#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "capstan/sdk/compression.hpp"

/// Structured pruning by momentum of |weight * gradient|, over all layers together: snip_momentum of Intel Neural
/// Compressor 2.x with its settings that DeepSpeed leaves as they are: global scope, exponential decay of the density,
/// mean over blocks, no layer above 98 % (SNIP: Lee et al. 2019, arXiv 1810.02340, equation 4).
namespace capstan::compression {

/// When, and how much of the weights, is pruned.
struct SnipSchedule {
  std::int64_t first = 0, last = 0, stride = 1;  // updates
  double sparsity = 0.9;                         // at last

  static constexpr double kMost = 0.98;
  /// Whether weights are pruned once so many updates are done. Before any update nothing is known of them: a single
  /// pruning that falls there comes after the first one.
  bool is_instant(std::int64_t updates) const;
  /// The share that is pruned there: 1 - ((1 - s)^(1/C))^c with c = (updates - first) / stride and
  /// C = (last - first + stride) / stride - 1; all of it at a single instant.
  double share(std::int64_t updates) const;

 private:
  std::int64_t instants() const { return (last - first + stride) / stride; }
};

/// The structure of what is pruned: "4x1" blocks of rows x columns, "channelx1", "1xchannel", or "2:4", of so many
/// consecutive inputs so many.
struct BlockPattern {
  bool of_groups = false;               // N:M
  std::uint64_t rows = 1, columns = 1;  // of a block, 0: all; of N:M, N and M

  /// Throws sdk::Error that begins with `where`.
  static BlockPattern read(const std::string& text, const std::string& where);
};

/// A weight [out, in, ...] as a matrix [out, ... * in] whose blocks are pruned. Of a convolution, columns are
/// (kernel position, input channel), the channel fastest.
class BlockedWeight {
 public:
  /// Whether the blocks fill the weight.
  static bool fits(const std::vector<std::int64_t>& shape, const BlockPattern& pattern);
  BlockedWeight(const std::vector<std::int64_t>& shape, const BlockPattern& pattern);

  std::uint64_t blocks() const { return blocks_; }
  /// The score of each block: the mean of its elements'; of N:M groups the sum of the N smallest over M.
  std::vector<float> scores(std::span<const float> elements) const;
  /// Fills `mask`, of the elements from `offset` on, by which blocks stay: those with a score above the threshold.
  void fill_mask(std::span<const float> elements, std::span<const float> scores, float threshold, std::uint64_t offset,
                 std::span<std::uint8_t> mask) const;

 private:
  struct Place {
    std::uint64_t block;
    std::uint64_t in_group;  // of N:M
  };
  Place place(std::uint64_t element) const;
  std::vector<std::uint64_t> candidates(std::span<const float> elements, std::uint64_t group) const;
  std::uint64_t element(std::uint64_t row, std::uint64_t column) const;

  BlockPattern pattern_;
  std::uint64_t rows_, columns_, in_, kernel_;
  std::uint64_t blocks_ = 0;
};

/// The scores of blocks above which they stay, one threshold a layer, so that `pruned` of all blocks go, and of no
/// layer more than 98 %. `of_layers`: this rank's part of each layer's scores; `blocks`: how many a layer has on all
/// ranks.
std::vector<float> snip_thresholds(const std::vector<std::vector<float>>& of_layers,
                                   const std::vector<std::uint64_t>& blocks, std::uint64_t pruned, bool parts,
                                   const sdk::PieceRanks& ranks);

}  // namespace capstan::compression

#include "core/zero/block_format.hpp"

#include <algorithm>

namespace capstan {
namespace {

constexpr std::int64_t kLargestWeightBlock = 8000;
constexpr std::int64_t kVector = 32;  // elements: gradients' blocks hold whole vectors, and whole bytes

/// The smallest divisor of `number` that is not below `least`; at most `number` itself.
std::int64_t divisor_from(std::int64_t number, std::int64_t least) {
  std::int64_t best = number;
  for (std::int64_t one = 1; one * one <= number; ++one) {
    if (number % one != 0) continue;
    if (one >= least) return std::min(best, one);
    if (number / one >= least) best = number / one;
  }
  return best;
}

}  // namespace

BlockFormat weight_format(std::int64_t n) {
  if (n == 0 || n % 8 != 0) return {8, n, 0};
  std::int64_t blocks = divisor_from(n / 8, (n + kLargestWeightBlock - 1) / kLargestWeightBlock);
  while (n % (16 * blocks) == 0 && n / blocks > kLargestWeightBlock) blocks *= 2;
  return {8, n, n / blocks};
}

std::int64_t gradient_block(const std::vector<std::int64_t>& shape, int ranks) {
  if (shape.size() < 2) return 0;
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  const std::int64_t blocks = std::max({shape[0], shape[1], std::int64_t{ranks}, std::int64_t{1}});
  const std::int64_t block = (numel + blocks - 1) / blocks;
  return std::clamp((block + kVector - 1) / kVector * kVector, kVector, kLargestGradientBlock);
}

std::vector<std::vector<GradientRange>> gradient_ranges(const Partition& partition, std::size_t index,
                                                        const std::vector<std::vector<std::int64_t>>& shapes) {
  const Bucket& bucket = partition.buckets()[index];
  std::vector<std::vector<GradientRange>> of_rank(static_cast<std::size_t>(partition.ranks()));
  for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
    const std::size_t i = partition.order()[at];
    const std::int64_t block = gradient_block(shapes[i], partition.ranks());
    // The gap that aligns the next parameter goes with this one; it holds zeros, which change no block's scale.
    const std::int64_t begin = partition.first(i);
    const std::int64_t end =
        at + 1 < bucket.end ? partition.first(partition.order()[at + 1]) : bucket.first + bucket.numel;
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
      const std::int64_t from = std::max(begin, bucket.rank_first[rank]);
      const std::int64_t to = std::min(end, bucket.rank_first[rank + 1]);
      if (from >= to) continue;
      std::vector<GradientRange>& ranges = of_rank[rank];
      if (block == 0 && !ranges.empty() && ranges.back().block == 0) {
        ranges.back().numel += to - from;
      } else {
        ranges.push_back({to - from, block});
      }
    }
  }
  return of_rank;
}

}  // namespace capstan

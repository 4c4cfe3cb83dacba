#pragma once

#include <cstdint>
#include <vector>

#include "core/data/dataset.hpp"

namespace capstan {

/// Gives micro-batches in an order that is a function of the global sample number and the seed only, so that resuming
/// is setting that number, on any world size.
class BatchOrder {
 public:
  /// shuffle: each pass over the data is a permutation of its own (a keyed bijection, no table); otherwise sample
  /// number n is n mod samples.
  BatchOrder(std::int64_t samples, std::uint64_t seed, bool shuffle);
  /// The sample that stands at global position `n` (0 for the first of the run). Throws std::invalid_argument for a
  /// negative one.
  std::int64_t sample(std::int64_t n) const;
  /// The samples at `count` positions from `first` on.
  std::vector<std::int64_t> samples(std::int64_t first, std::int64_t count) const;

 private:
  std::int64_t samples_;
  std::uint64_t seed_;
  bool shuffle_;
};

/// The batch of rows n, n+1, ... of the order, `first` being n.
Batch ordered_batch(const Dataset& data, const BatchOrder& order, std::int64_t first, std::int64_t rows);

}  // namespace capstan

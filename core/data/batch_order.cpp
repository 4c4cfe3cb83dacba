#include "core/data/batch_order.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include "capstan/sdk/permutation.hpp"

namespace capstan {
BatchOrder::BatchOrder(std::int64_t samples, std::uint64_t seed, bool shuffle)
    : samples_(samples), seed_(seed), shuffle_(shuffle) {
  if (samples < 1) throw std::invalid_argument("BatchOrder: there must be at least one sample");
}

std::int64_t BatchOrder::sample(std::int64_t n) const {
  if (n < 0) throw std::invalid_argument("BatchOrder: there is no sample " + std::to_string(n));
  const std::int64_t pass = n / samples_, place = n % samples_;
  if (!shuffle_) return place;
  const std::uint64_t key = sdk::splitmix64(sdk::splitmix64(seed_) ^ static_cast<std::uint64_t>(pass));
  const sdk::KeyedPermutation permutation(static_cast<std::uint64_t>(samples_), key);
  return static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(place)));
}

std::vector<std::int64_t> BatchOrder::samples(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> list;
  for (std::int64_t n = first; n < first + count; ++n) list.push_back(sample(n));
  return list;
}

Batch ordered_batch(const Dataset& data, const BatchOrder& order, std::int64_t first, std::int64_t rows) {
  return data.read(order.samples(first, rows));
}

}  // namespace capstan

#include "core/data/batch_order.hpp"

#include <bit>
#include <stdexcept>
#include <string>
#include <vector>

namespace capstan {
namespace {

std::uint64_t splitmix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// A permutation of 0 ... size-1 that a key picks: a Feistel network over the next even power of two, walked along its
/// cycle until it is back in the range. The network is a bijection of the larger range, so the walk ends and is one of
/// the smaller; that is under four times as large, so a walk takes four turns on average at most.
class KeyedPermutation {
 public:
  KeyedPermutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(key) {
    half_bits_ = size <= 2 ? 1 : (std::bit_width(size - 1) + 1) / 2;
    half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  std::uint64_t operator()(std::uint64_t value) const {
    do {
      value = network(value);
    } while (value >= size_);
    return value;
  }

 private:
  std::uint64_t network(std::uint64_t value) const {
    std::uint64_t left = value >> half_bits_, right = value & half_mask_;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = splitmix64(splitmix64(key_ + round) ^ right);
      const std::uint64_t next = left ^ (mixed & half_mask_);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  static constexpr std::uint64_t kRounds = 6;
  std::uint64_t size_, key_;
  int half_bits_;
  std::uint64_t half_mask_;
};

}  // namespace

BatchOrder::BatchOrder(std::int64_t samples, std::uint64_t seed, bool shuffle)
    : samples_(samples), seed_(seed), shuffle_(shuffle) {
  if (samples < 1) throw std::invalid_argument("BatchOrder: there must be at least one sample");
}

std::int64_t BatchOrder::sample(std::int64_t n) const {
  if (n < 0) throw std::invalid_argument("BatchOrder: there is no sample " + std::to_string(n));
  const std::int64_t pass = n / samples_, place = n % samples_;
  if (!shuffle_) return place;
  const std::uint64_t key = splitmix64(splitmix64(seed_) ^ static_cast<std::uint64_t>(pass));
  const KeyedPermutation permutation(static_cast<std::uint64_t>(samples_), key);
  return static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(place)));
}

Batch ordered_batch(const Dataset& data, const BatchOrder& order, std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> samples;
  for (std::int64_t row = 0; row < rows; ++row) samples.push_back(order.sample(first + row));
  return data.read(samples);
}

}  // namespace capstan

#pragma once

#include <bit>
#include <cstdint>

namespace capstan::sdk {

/// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators; OOPSLA 2014).
constexpr std::uint64_t splitmix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// A permutation of 0 ... size-1 that a key picks, without a table: a Feistel network over the next even power of two,
/// walked along its cycle until it is back in the range. The network is a bijection of the larger range, so the walk
/// ends and is one of the smaller; that is under four times as large, so a walk takes four turns on average at most.
/// Pure.
class KeyedPermutation {
 public:
  constexpr KeyedPermutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(key) {
    half_bits_ = size <= 2 ? 1 : (std::bit_width(size - 1) + 1) / 2;
    half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  /// 0 <= value < size.
  constexpr std::uint64_t operator()(std::uint64_t value) const {
    do {
      value = network(value);
    } while (value >= size_);
    return value;
  }

 private:
  constexpr std::uint64_t network(std::uint64_t value) const {
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
  int half_bits_ = 1;
  std::uint64_t half_mask_ = 1;
};

}  // namespace capstan::sdk

#include "plugins/optimizers/onebit/compression_kernels.hpp"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/onebit/compression_kernels.cpp"
#include <hwy/foreach_target.h>

#include "capstan/sdk/elements/lanes-inl.h"

// Error-compensated sign compression (Tang et al. 2021):
//   b = values + error;  s = |b| / sqrt(n);  sign = b >= 0;  error = b - s*sign
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {
using namespace elements::HWY_NAMESPACE;

constexpr std::size_t kWord = 64;  // elements whose signs make eight bytes

/// Turns the bits of each byte round: vectors give the first lane in the least significant bit.
HWY_INLINE std::uint64_t reverse_in_bytes(std::uint64_t word) {
  word = (word >> 1 & 0x5555555555555555u) | (word & 0x5555555555555555u) << 1;
  word = (word >> 2 & 0x3333333333333333u) | (word & 0x3333333333333333u) << 2;
  return (word >> 4 & 0x0f0f0f0f0f0f0f0fu) | (word & 0x0f0f0f0f0f0f0f0fu) << 4;
}

HWY_INLINE std::uint64_t lane_bits(hn::Mask<Tag> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(Tag(), mask, bytes);
  std::uint64_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/// The signs of 64 elements as a number whose most significant bit is the first.
HWY_INLINE std::uint64_t load_signs(const std::uint8_t* bytes) {
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word = word << 8 | bytes[i];
  return word;
}

/// ±scale by the signs of the lanes from element `at` of a word on.
class SignLanes {
 public:
  HWY_INLINE SignLanes() : lanes_(hn::Lanes(Tag())) {
    HWY_ALIGN std::uint32_t bits[HWY_LANES(float)];
    for (std::size_t i = 0; i < lanes_; ++i) bits[i] = 1u << (lanes_ - 1 - i);
    bit_ = hn::Load(WordTag(), bits);
  }
  HWY_INLINE Lanes of(std::uint64_t word, std::size_t at, Lanes plus, Lanes minus) const {
    const std::uint64_t mask = (std::uint64_t{1} << lanes_) - 1;
    const auto bits = static_cast<std::uint32_t>(word >> (kWord - lanes_ - at) & mask);
    const auto set = hn::TestBit(hn::Set(WordTag(), bits), bit_);
    return hn::IfThenElse(hn::RebindMask(Tag(), set), plus, minus);
  }

 private:
  std::size_t lanes_;
  hn::Vec<WordTag> bit_;
};

void compress_signs(float* error, std::size_t count, float scale, std::uint8_t* signs) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const Lanes plus = all(scale), minus = all(-scale), zero = hn::Zero(d);
  const auto compress = [&](float* values) HWY_ATTR {
    std::uint64_t word = 0;
    for (std::size_t k = 0; k < kWord; k += lanes) {
      const Lanes value = hn::LoadU(d, values + k);
      const auto positive = hn::Ge(value, zero);
      hn::StoreU(hn::Sub(value, hn::IfThenElse(positive, plus, minus)), d, values + k);
      word |= lane_bits(positive) << k;
    }
    return reverse_in_bytes(word);
  };
  std::size_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    const std::uint64_t word = compress(error + i);
    std::memcpy(signs + i / 8, &word, sizeof word);
  }
  if (i < count) {
    HWY_ALIGN float rest[kWord] = {};
    std::memcpy(rest, error + i, (count - i) * sizeof(float));
    const std::uint64_t word = compress(rest);
    std::memcpy(error + i, rest, (count - i) * sizeof(float));
    std::memcpy(signs + i / 8, &word, (count - i + 7) / 8);
  }
}

double add_signs_and_measure(std::span<const std::uint8_t* const> signs, std::span<const float> scales, float* error,
                             std::size_t count) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const SignLanes sign;
  ProductSum squares;
  // All vectors of a word, with its signs from words(worker).
  const auto add = [&](float* values, const auto& words) HWY_ATTR {
    for (std::size_t k = 0; k < kWord; k += lanes) {
      Lanes sum = hn::Zero(d);
      for (std::size_t worker = 0; worker < signs.size(); ++worker) {
        sum = hn::Add(sum, sign.of(words(worker), k, all(scales[worker]), all(-scales[worker])));
      }
      sum = hn::Add(sum, hn::LoadU(d, values + k));
      hn::StoreU(sum, d, values + k);
    }
  };
  std::size_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    add(error + i, [&](std::size_t worker) { return load_signs(signs[worker] + i / 8); });
    for (std::size_t k = 0; k < kWord; k += lanes) {
      const Lanes sum = hn::LoadU(d, error + i + k);
      squares.add(sum, sum);
    }
  }
  if (i < count) {
    const std::size_t rest = count - i;
    HWY_ALIGN float values[kWord] = {};
    std::memcpy(values, error + i, rest * sizeof(float));
    add(values, [&](std::size_t worker) {
      std::uint8_t bytes[8] = {};
      std::memcpy(bytes, signs[worker] + i / 8, (rest + 7) / 8);
      return load_signs(bytes);
    });
    std::fill(values + rest, values + kWord, 0.0f);
    std::memcpy(error + i, values, rest * sizeof(float));
    for (std::size_t k = 0; k < kWord; k += lanes) {
      const Lanes sum = hn::LoadU(d, values + k);
      squares.add(sum, sum);
    }
  }
  return squares.total();
}

void expand_signs(const std::uint8_t* signs, float scale, float* out, std::size_t count) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const SignLanes sign;
  const Lanes plus = all(scale), minus = all(-scale);
  std::size_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    const std::uint64_t word = load_signs(signs + i / 8);
    for (std::size_t k = 0; k < kWord; k += lanes) hn::StoreU(sign.of(word, k, plus, minus), d, out + i + k);
  }
  if (i < count) {
    HWY_ALIGN float rest[kWord];
    std::uint8_t bytes[8] = {};
    std::memcpy(bytes, signs + i / 8, (count - i + 7) / 8);
    const std::uint64_t word = load_signs(bytes);
    for (std::size_t k = 0; k < kWord; k += lanes) hn::StoreU(sign.of(word, k, plus, minus), d, rest + k);
    std::memcpy(out + i, rest, (count - i) * sizeof(float));
  }
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(compress_signs);
HWY_EXPORT(add_signs_and_measure);
HWY_EXPORT(expand_signs);

void compress_signs(float* error, std::size_t count, float scale, std::uint8_t* signs) {
  HWY_DYNAMIC_DISPATCH(compress_signs)(error, count, scale, signs);
}
double add_signs_and_measure(std::span<const std::uint8_t* const> signs, std::span<const float> scales, float* error,
                             std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(add_signs_and_measure)(signs, scales, error, count);
}
void expand_signs(const std::uint8_t* signs, float scale, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(expand_signs)(signs, scale, out, count);
}

}  // namespace capstan::optimizers
#endif

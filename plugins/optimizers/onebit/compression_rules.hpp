#pragma once

#include "capstan/sdk/elements/everywhere.hpp"
#include "plugins/optimizers/onebit/compression_rule.hpp"
#include "plugins/optimizers/onebit/fixed_order.hpp"
#include "plugins/optimizers/onebit/kernels.hpp"

// Compression by a device, with the roundings of the CPU's loops: body(item, i) for each index of each item, in any
// order.
namespace capstan::optimizers::compression_rules {

struct Mask {
  const std::uint8_t* keep;
  std::size_t run;
  float* values;
  CAPSTAN_EVERYWHERE void operator()(std::size_t i) const {
    if (keep[i / run] == 0) values[i] = 0;
  }
};

// Eight elements an index: a byte of signs. All eight are read before any is written, so that enough is
// under way to fill the memory's bandwidth.

struct Eight {
  float values[8];
  std::size_t count;  // real ones; the others are 0
};

CAPSTAN_EVERYWHERE inline Eight eight_at(const float* values, std::size_t byte, std::size_t count) {
  Eight eight{};
  const std::size_t begin = 8 * byte;
  eight.count = begin >= count ? 0 : count - begin < 8 ? count - begin : 8;
  const float* from = values + begin;
#ifdef __CUDA_ARCH__
  if (eight.count == 8 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, 8};
  }
#endif
  for (std::size_t k = 0; k < 8; ++k) {
    if (k < eight.count) eight.values[k] = from[k];
  }
  return eight;
}

CAPSTAN_EVERYWHERE inline void put(const Eight& eight, float* to) {
#ifdef __CUDA_ARCH__
  if (eight.count == 8 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    const float* v = eight.values;
    reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
#endif
  for (std::size_t k = 0; k < 8; ++k) {
    if (k < eight.count) to[k] = eight.values[k];
  }
}

/// The scales of shares, once for each: a division and a root in double precision.
struct Scales {
  const OutgoingShare* shares;
  float* scales;
  CAPSTAN_EVERYWHERE void operator()(std::size_t i) const {
    scales[i] = scale_of(*shares[i].squares, shares[i].elements);
    memcpy(shares[i].scale, scales + i, sizeof(float));
  }
};

struct Compress {
  const OutgoingShare* shares;
  const float* scales;
  CAPSTAN_EVERYWHERE void operator()(std::size_t item, std::size_t byte) const {
    const OutgoingShare& share = shares[item];
    const float scale = scales[item];
    Eight eight = eight_at(share.values, byte, share.count);
    std::uint8_t signs = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      if (eight.values[k] >= 0) signs |= bit_of(k);
      eight.values[k] = missed(eight.values[k], scale);
    }
    share.signs[byte] = signs;
    put(eight, share.values + 8 * byte);
  }
};

struct Serve {
  const ArrivedShare* shares;
  CAPSTAN_EVERYWHERE void operator()(std::size_t item, std::size_t byte, Total& total) const {
    const ArrivedShare& share = shares[item];
    Eight eight = eight_at(share.values, byte, share.count);
    float sums[8] = {};
    for (std::size_t rank = 0; rank < share.ranks; ++rank) {
      const std::uint8_t signs = share.signs[rank * share.stride + byte];
      const float scale = scale_at(share, rank);
      for (std::size_t k = 0; k < 8; ++k) sums[k] += signs & bit_of(k) ? scale : -scale;
    }
    for (std::size_t k = 0; k < 8; ++k) {
      eight.values[k] = sums[k] + eight.values[k];
      if (k < eight.count) total.add(0, eight.values[k], eight.values[k]);
    }
    put(eight, share.values + 8 * byte);
  }
  CAPSTAN_EVERYWHERE void put_total(std::size_t item, const Total& total) const { *shares[item].squares = total.value; }
};

/// Expands byte i of the signs, counted from the byte that holds element `begin`.
struct Expand {
  ArrivedBuffer buffer;
  std::size_t begin, count;
  float* out;
  CAPSTAN_EVERYWHERE void operator()(std::size_t i) const {
    const std::size_t byte = begin / 8 + i;
    const std::size_t rank = 8 * byte / buffer.padded;
    const std::uint8_t signs = buffer.signs[rank * buffer.stride + (byte - rank * buffer.padded / 8)];
    const float scale = float_at(buffer.scale + rank * buffer.stride);
    Eight eight{{}, 8};
    for (std::size_t k = 0; k < 8; ++k) eight.values[k] = signs & bit_of(k) ? scale : -scale;
    if (8 * byte >= begin && 8 * byte + 8 <= begin + count) return put(eight, out + (8 * byte - begin));
    for (std::size_t k = 0; k < 8; ++k) {  // the first and the last byte
      const std::size_t at = 8 * byte + k;
      if (at >= begin && at < begin + count) out[at - begin] = eight.values[k];
    }
  }
};

}  // namespace capstan::optimizers::compression_rules

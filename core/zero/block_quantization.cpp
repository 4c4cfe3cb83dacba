#include "core/zero/block_quantization.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/zero/block_quantization.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace capstan::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The largest magnitude, or NaN when a value is not finite.
float magnitude(const float* values, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  // 0 times what is not finite is NaN, and stays.
  auto finite = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, values + i);
    largest = hn::Max(largest, hn::Abs(value));
    finite = hn::Add(finite, hn::Mul(value, hn::Zero(d)));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, largest)), test = hn::GetLane(hn::SumOfLanes(d, finite));
  for (; i < count; ++i) {
    result = std::max(result, std::abs(values[i]));
    test += values[i] * 0.0f;
  }
  return test == 0.0f ? result : std::numeric_limits<float>::quiet_NaN();
}

/// codes[i] = round_half_even(values[i] * r), clipped.
void to_codes(const float* values, std::size_t count, float r, int lowest, int highest, std::int8_t* codes) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Rebind<std::int8_t, decltype(d)> bytes;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, r)));
    const auto clipped = hn::Min(hn::Max(rounded, hn::Set(integers, lowest)), hn::Set(integers, highest));
    hn::StoreU(hn::DemoteTo(bytes, clipped), bytes, codes + i);
  }
  for (; i < count; ++i) {
    codes[i] = static_cast<std::int8_t>(std::clamp(static_cast<int>(std::nearbyint(values[i] * r)), lowest, highest));
  }
}

/// values[i] = codes[i] * scale, or that added.
void from_codes(const std::int8_t* codes, std::size_t count, float scale, bool add, float* values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Rebind<std::int8_t, decltype(d)> bytes;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto code = hn::ConvertTo(d, hn::PromoteTo(integers, hn::LoadU(bytes, codes + i)));
    const auto value = hn::Mul(code, hn::Set(d, scale));
    // Not MulAdd: sums must not depend on the CPU.
    hn::StoreU(add ? hn::Add(hn::LoadU(d, values + i), value) : value, d, values + i);
  }
  for (; i < count; ++i) {
    const float value = static_cast<float>(codes[i]) * scale;
    values[i] = add ? values[i] + value : value;
  }
}

}  // namespace capstan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan {
namespace {

HWY_EXPORT(magnitude);
HWY_EXPORT(to_codes);
HWY_EXPORT(from_codes);

constexpr std::int64_t kThreadShare = 65536;  // elements that are worth a thread

/// Calls `work(first element, elements, block)` for every block.
template <class Work>
void for_blocks(const BlockFormat& format, const Work& work) {
  const std::int64_t grain = std::max<std::int64_t>(kThreadShare / std::max<std::int64_t>(format.block, 1), 1);
  at::parallel_for(0, format.blocks(), grain, [&](std::int64_t from, std::int64_t to) {
    std::vector<std::int8_t> unpacked(format.bits == 4 ? static_cast<std::size_t>(format.block) : 0);
    for (std::int64_t block = from; block < to; ++block) {
      const std::int64_t first = block * format.block;
      work(first, std::min(format.block, format.numel - first), block, unpacked.data());
    }
  });
}

void pack(const std::int8_t* codes, std::int64_t count, std::uint8_t* packed) {
  for (std::int64_t i = 0; i + 1 < count; i += 2) {
    packed[i / 2] = static_cast<std::uint8_t>((codes[i] & 15) | (codes[i + 1] & 15) << 4);
  }
  if (count % 2 != 0) packed[count / 2] = static_cast<std::uint8_t>(codes[count - 1] & 15);
}

void unpack(const std::uint8_t* packed, std::int64_t count, std::int8_t* codes) {
  const auto signed_nibble = [](int nibble) { return static_cast<std::int8_t>((nibble ^ 8) - 8); };
  for (std::int64_t i = 0; i < count; ++i) codes[i] = signed_nibble(packed[i / 2] >> (i % 2 * 4) & 15);
}

void unpack_all(const BlockFormat& format, const float* scales, const std::uint8_t* codes, bool add, float* values) {
  const auto convert = HWY_DYNAMIC_DISPATCH(from_codes);
  for_blocks(format, [&](std::int64_t first, std::int64_t count, std::int64_t block, std::int8_t* unpacked) {
    const std::int8_t* of_block = unpacked;
    if (format.bits == 4) {
      unpack(codes + first / 2, count, unpacked);
    } else {
      of_block = reinterpret_cast<const std::int8_t*>(codes) + first;
    }
    convert(of_block, static_cast<std::size_t>(count), scales[block], add, values + first);
  });
}

}  // namespace

void quantize(const BlockFormat& format, const float* values, float* scales, std::uint8_t* codes) {
  const auto largest_of = HWY_DYNAMIC_DISPATCH(magnitude);
  const auto convert = HWY_DYNAMIC_DISPATCH(to_codes);
  const int half = format.bits == 8 ? 128 : 8;
  for_blocks(format, [&](std::int64_t first, std::int64_t count, std::int64_t block, std::int8_t* unpacked) {
    const float a = largest_of(values + first, static_cast<std::size_t>(count));
    std::int8_t* of_block = format.bits == 4 ? unpacked : reinterpret_cast<std::int8_t*>(codes) + first;
    if (std::isnan(a) || a < kSmallestMagnitude) {
      scales[block] = std::isnan(a) ? a : 1.0f;
      std::fill(of_block, of_block + count, std::int8_t{0});
    } else {
      const float r = static_cast<float>(half) / a;
      scales[block] = 1.0f / r;
      convert(values + first, static_cast<std::size_t>(count), r, -half, half - 1, of_block);
    }
    if (format.bits == 4) pack(unpacked, count, codes + first / 2);
  });
}

void dequantize(const BlockFormat& format, const float* scales, const std::uint8_t* codes, float* values) {
  unpack_all(format, scales, codes, /*add=*/false, values);
}

void add_dequantized(const BlockFormat& format, const float* scales, const std::uint8_t* codes, float* sum) {
  unpack_all(format, scales, codes, /*add=*/true, sum);
}

}  // namespace capstan
#endif

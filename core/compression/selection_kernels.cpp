#include "core/compression/selection_kernels.hpp"

#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/compression/selection_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace capstan::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

CollectedKeys collect(const float* values, std::size_t count, std::uint32_t low, std::uint32_t high,
                      std::uint32_t* out) {
  const hn::CappedTag<float, 16> floats;
  const hn::Rebind<std::uint32_t, decltype(floats)> keys;
  const hn::Rebind<std::int32_t, decltype(floats)> signs;
  const std::size_t lanes = hn::Lanes(floats);
  const auto sign = hn::Set(keys, 0x80000000u), from = hn::Set(keys, low), to = hn::Set(keys, high);
  CollectedKeys found;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    // Adding zero makes one zero of both.
    const auto bits = hn::BitCast(keys, hn::Add(hn::LoadU(floats, values + i), hn::Zero(floats)));
    const auto negative = hn::BitCast(keys, hn::ShiftRight<31>(hn::BitCast(signs, bits)));
    const auto key = hn::Xor(bits, hn::Or(negative, sign));
    const auto above = hn::Gt(key, to);
    const auto inside = hn::Not(hn::Or(hn::Gt(from, key), above));
    found.inside += hn::CompressStore(key, inside, keys, out + found.inside);
    found.above += hn::CountTrue(keys, above);
  }
  for (; i < count; ++i) {
    const std::uint32_t key = selection_key(values[i]);
    out[found.inside] = key;
    found.inside += key >= low && key <= high ? 1 : 0;
    found.above += key > high ? 1 : 0;
  }
  return found;
}

std::size_t mask_values(const float* values, std::size_t count, float threshold, std::uint8_t* mask) {
  const hn::CappedTag<float, 16> floats;
  const hn::Rebind<std::uint32_t, decltype(floats)> words;
  const hn::Rebind<std::uint8_t, decltype(floats)> bytes;
  const std::size_t lanes = hn::Lanes(floats);
  const auto edge = hn::Set(floats, threshold);
  const auto one = hn::Set(words, 1);
  std::size_t equal = 0, i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(floats, values + i);
    equal += hn::CountTrue(floats, hn::Eq(value, edge));
    if (mask == nullptr) continue;
    const auto kept = hn::VecFromMask(words, hn::RebindMask(words, hn::Ge(value, edge)));
    hn::StoreU(hn::TruncateTo(bytes, hn::And(kept, one)), bytes, mask + i);
  }
  for (; i < count; ++i) {
    equal += values[i] == threshold ? 1 : 0;
    if (mask != nullptr) mask[i] = values[i] >= threshold ? 1 : 0;
  }
  return equal;
}

}  // namespace capstan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan {

HWY_EXPORT(collect);
HWY_EXPORT(mask_values);

std::uint32_t selection_key(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float selection_value(std::uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

CollectedKeys collect_keys(const float* values, std::size_t count, std::uint32_t low, std::uint32_t high,
                           std::uint32_t* out) {
  return HWY_DYNAMIC_DISPATCH(collect)(values, count, low, high, out);
}

std::size_t mask_from(const float* values, std::size_t count, float threshold, std::uint8_t* mask) {
  return HWY_DYNAMIC_DISPATCH(mask_values)(values, count, threshold, mask);
}

}  // namespace capstan
#endif

#include "capstan/sdk/elements/convert.hpp"

#include <cstring>

// The build sets HWY_TARGET_INCLUDE to this file.
#include <hwy/foreach_target.h>

#include "capstan/sdk/elements/bfloat16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::elements::HWY_NAMESPACE {
// float16 by integer arithmetic, because not every target rounds and keeps subnormal numbers as IEEE 754 says.
HWY_INLINE Lanes widen_f16(HalfWords halves) {
  const WordTag words;
  const auto bits = hn::PromoteTo(words, halves);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(words, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(words, 0x7fffu)));
  // 2^112 moves the exponent's bias from 15 to 127, and does it for subnormal numbers too.
  const auto scaled = hn::Mul(hn::BitCast(Tag(), magnitude), hn::Set(Tag(), 0x1p112f));
  const auto special = hn::Ge(scaled, hn::Set(Tag(), 0x1p16f));  // infinities and NaNs
  const auto wide = hn::Or(hn::BitCast(words, scaled),
                           hn::IfThenElseZero(hn::RebindMask(words, special), hn::Set(words, 0x7f800000u)));
  return hn::BitCast(Tag(), hn::Or(sign, wide));
}

HWY_INLINE HalfWords narrow_f16(Lanes values) {
  const WordTag words;
  const auto bits = hn::BitCast(words, values);
  const auto magnitude = hn::And(bits, hn::Set(words, 0x7fffffffu));
  const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(words, 0x80000000u)));
  const auto absolute = hn::BitCast(Tag(), magnitude);
  // Below 2^-14 an addition of 1/2 leaves the subnormal's ten bits, rounded, at the end of the sum.
  const auto half = hn::Set(Tag(), 0.5f);
  const auto subnormal = hn::Sub(hn::BitCast(words, hn::Add(absolute, half)), hn::BitCast(words, half));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 1u));
  const auto rebiased = hn::Add(hn::Sub(magnitude, hn::Set(words, 112u << 23)), hn::Add(odd, hn::Set(words, 0xfffu)));
  const auto normal = hn::ShiftRight<13>(rebiased);
  const auto is_small = hn::RebindMask(words, hn::Lt(absolute, hn::Set(Tag(), 0x1p-14f)));
  const auto is_large = hn::RebindMask(words, hn::Ge(absolute, hn::Set(Tag(), 65520.0f)));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(values));
  auto result = hn::IfThenElse(is_small, subnormal, normal);
  result = hn::IfThenElse(is_large, hn::Set(words, 0x7c00u), result);
  result = hn::IfThenElse(is_nan, hn::Set(words, 0x7e00u), result);
  return hn::TruncateTo(HalfWordTag(), hn::Or(sign, result));
}

template <class Convert>
HWY_INLINE void widen_all(const std::uint16_t* from, float* to, std::size_t count, const Convert& convert) {
  const Tag d;
  const HalfWordTag halves;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(convert(hn::LoadU(halves, from + i)), d, to + i);
  if (i == count) return;
  HWY_ALIGN std::uint16_t in[HWY_LANES(float)] = {};
  HWY_ALIGN float out[HWY_LANES(float)];
  std::memcpy(in, from + i, (count - i) * sizeof(in[0]));
  hn::StoreU(convert(hn::LoadU(halves, in)), d, out);
  std::memcpy(to + i, out, (count - i) * sizeof(out[0]));
}

template <class Convert>
HWY_INLINE void narrow_all(const float* from, std::uint16_t* to, std::size_t count, const Convert& convert) {
  const Tag d;
  const HalfWordTag halves;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(convert(hn::LoadU(d, from + i)), halves, to + i);
  if (i == count) return;
  HWY_ALIGN float in[HWY_LANES(float)] = {};
  HWY_ALIGN std::uint16_t out[HWY_LANES(float)];
  std::memcpy(in, from + i, (count - i) * sizeof(in[0]));
  hn::StoreU(convert(hn::LoadU(d, in)), halves, out);
  std::memcpy(to + i, out, (count - i) * sizeof(out[0]));
}

void widen_bf16_all(const std::uint16_t* from, float* to, std::size_t count) {
  widen_all(from, to, count, [](HalfWords bits) HWY_ATTR { return widen_bf16(bits); });
}
void widen_f16_all(const std::uint16_t* from, float* to, std::size_t count) {
  widen_all(from, to, count, [](HalfWords bits) HWY_ATTR { return widen_f16(bits); });
}
void narrow_bf16_all(const float* from, std::uint16_t* to, std::size_t count) {
  narrow_all(from, to, count, [](Lanes values) HWY_ATTR { return narrow_bf16(values); });
}
void narrow_f16_all(const float* from, std::uint16_t* to, std::size_t count) {
  narrow_all(from, to, count, [](Lanes values) HWY_ATTR { return narrow_f16(values); });
}

}  // namespace capstan::elements::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::elements {

HWY_EXPORT(widen_bf16_all);
HWY_EXPORT(widen_f16_all);
HWY_EXPORT(narrow_bf16_all);
HWY_EXPORT(narrow_f16_all);

void widen(const void* from, sdk::Dtype dtype, float* to, std::size_t count) {
  switch (dtype) {
    case sdk::Dtype::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(widen_bf16_all)(static_cast<const std::uint16_t*>(from), to, count);
    case sdk::Dtype::kFloat16:
      return HWY_DYNAMIC_DISPATCH(widen_f16_all)(static_cast<const std::uint16_t*>(from), to, count);
    default:
      std::memcpy(to, from, count * sizeof(float));
  }
}

void narrow(const float* from, void* to, sdk::Dtype dtype, std::size_t count) {
  switch (dtype) {
    case sdk::Dtype::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(narrow_bf16_all)(from, static_cast<std::uint16_t*>(to), count);
    case sdk::Dtype::kFloat16:
      return HWY_DYNAMIC_DISPATCH(narrow_f16_all)(from, static_cast<std::uint16_t*>(to), count);
    default:
      std::memcpy(to, from, count * sizeof(float));
  }
}

std::size_t size_of(sdk::Dtype dtype) {
  return dtype == sdk::Dtype::kFloat32 ? 4 : dtype == sdk::Dtype::kInt64 ? 8 : 2;
}

}  // namespace capstan::elements
#endif

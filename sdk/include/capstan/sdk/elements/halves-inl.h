// Vector conversions between floats of 16 bits and float32. Included once per SIMD target, after
// <hwy/foreach_target.h>.
#if defined(CAPSTAN_ELEMENTS_HALVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_ELEMENTS_HALVES_INL_H_
#undef CAPSTAN_ELEMENTS_HALVES_INL_H_
#else
#define CAPSTAN_ELEMENTS_HALVES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace capstan::elements::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Lanes = hn::Vec<Tag>;
using WordTag = hn::Rebind<std::uint32_t, Tag>;
using HalfWordTag = hn::Rebind<std::uint16_t, Tag>;
using HalfWords = hn::Vec<HalfWordTag>;

/// bfloat16 is the upper half of a float.
HWY_INLINE Lanes widen_bf16(HalfWords bits) {
  return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), bits)));
}

/// To nearest even: adds just under half of the last kept bit, and all of it where that bit is odd. A NaN would carry
/// into the sign, so it becomes the quiet one.
HWY_INLINE HalfWords narrow_bf16(Lanes values) {
  const WordTag words;
  const auto bits = hn::BitCast(words, values);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(words, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffu))));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(values));
  return hn::TruncateTo(HalfWordTag(), hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(words, 0x40u)), rounded));
}

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

}  // namespace capstan::elements::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

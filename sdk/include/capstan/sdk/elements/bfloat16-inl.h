// Vector conversions between bfloat16 and float32. Included once per SIMD target, after <hwy/foreach_target.h>.
#if defined(CAPSTAN_ELEMENTS_BFLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_ELEMENTS_BFLOAT16_INL_H_
#undef CAPSTAN_ELEMENTS_BFLOAT16_INL_H_
#else
#define CAPSTAN_ELEMENTS_BFLOAT16_INL_H_
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

}  // namespace capstan::elements::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#include "capstan/sdk/elements/convert.hpp"

#include <cstring>

// The build sets HWY_TARGET_INCLUDE to this file.
#include <hwy/foreach_target.h>

#include "capstan/sdk/elements/halves-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::elements::HWY_NAMESPACE {

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

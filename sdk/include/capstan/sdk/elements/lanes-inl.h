// The vector loop that all optimizer kernels share. Included once per SIMD target, after <hwy/foreach_target.h>.
#if defined(CAPSTAN_ELEMENTS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_ELEMENTS_LANES_INL_H_
#undef CAPSTAN_ELEMENTS_LANES_INL_H_
#else
#define CAPSTAN_ELEMENTS_LANES_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "capstan/sdk/elements/block.hpp"
#include "capstan/sdk/elements/halves-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::elements::HWY_NAMESPACE {

HWY_INLINE Lanes all(float value) { return hn::Set(Tag(), value); }

HWY_INLINE Lanes load_grad(const float* from) { return hn::LoadU(Tag(), from); }
HWY_INLINE Lanes load_grad(const std::uint16_t* from) { return widen_bf16(hn::LoadU(HalfWordTag(), from)); }

/// One vector: body(p, g, s...) changes its arguments, which are then stored. A gradient is read, never written.
template <std::size_t kStates, bool kCopy, class Grad, class Body>
HWY_INLINE void update_lanes(float* p, const Grad* g, float* const* s, std::uint16_t* copy, std::size_t at,
                             bool stream_copy, const Body& body) {
  const Tag d;
  Lanes param = hn::LoadU(d, p + at);
  const Lanes grad = load_grad(g + at);
  if constexpr (kStates == 0) {
    body(param, grad);
  } else {
    Lanes s0 = hn::LoadU(d, s[0] + at);
    if constexpr (kStates == 1) {
      body(param, grad, s0);
    } else {
      Lanes s1 = hn::LoadU(d, s[1] + at);
      if constexpr (kStates == 2) {
        body(param, grad, s0, s1);
      } else {
        Lanes s2 = hn::LoadU(d, s[2] + at);
        body(param, grad, s0, s1, s2);
        hn::StoreU(s2, d, s[2] + at);
      }
      hn::StoreU(s1, d, s[1] + at);
    }
    hn::StoreU(s0, d, s[0] + at);
  }
  hn::StoreU(param, d, p + at);
  if constexpr (kCopy) {
    if (stream_copy) {
      hn::Stream(narrow_bf16(param), HalfWordTag(), copy + at);
    } else {
      hn::StoreU(narrow_bf16(param), HalfWordTag(), copy + at);
    }
  }
}

/// The last, incomplete vector goes through zero-padded copies and the same instructions, so that an element's result
/// does not depend on where in a block it stands.
template <std::size_t kStates, bool kCopy, class Grad, class Body>
HWY_INLINE void update_rest(const Block& block, std::size_t from, const Body& body) {
  const std::size_t rest = block.count - from;
  if (rest == 0) return;
  HWY_ALIGN float param[HWY_LANES(float)] = {};
  HWY_ALIGN float state[kMaxStates][HWY_LANES(float)] = {};
  HWY_ALIGN Grad grad[HWY_LANES(float)] = {};
  HWY_ALIGN std::uint16_t copy[HWY_LANES(float)];
  float* states[kMaxStates] = {state[0], state[1], state[2]};
  std::memcpy(param, block.param + from, rest * sizeof(float));
  std::memcpy(grad, static_cast<const Grad*>(block.grad) + from, rest * sizeof(Grad));
  for (std::size_t s = 0; s < kStates; ++s) std::memcpy(state[s], block.state[s] + from, rest * sizeof(float));
  update_lanes<kStates, kCopy>(param, grad, states, copy, 0, false, body);
  std::memcpy(block.param + from, param, rest * sizeof(float));
  for (std::size_t s = 0; s < kStates; ++s) std::memcpy(block.state[s] + from, state[s], rest * sizeof(float));
  if constexpr (kCopy) std::memcpy(block.copy + from, copy, rest * sizeof(std::uint16_t));
}

template <std::size_t kStates, bool kCopy, class Grad, class Body>
HWY_INLINE void sweep_as(const Block& block, const Body& body) {
  const std::size_t lanes = hn::Lanes(Tag());
  const auto* grad = static_cast<const Grad*>(block.grad);
  std::size_t i = 0;
  for (; i + lanes <= block.count; i += lanes) {
    update_lanes<kStates, kCopy>(block.param, grad, block.state, block.copy, i, block.stream_copy, body);
  }
  if (kCopy && block.stream_copy) hwy::FlushStream();
  update_rest<kStates, kCopy, Grad>(block, i, body);
}

/// All elements of a block: body(p, g, s...) for every vector.
template <std::size_t kStates, class Body>
HWY_INLINE void sweep(const Block& block, const Body& body) {
  static_assert(kStates <= kMaxStates);
  if (block.grad_is_bf16) {
    if (block.copy != nullptr) return sweep_as<kStates, true, std::uint16_t>(block, body);
    return sweep_as<kStates, false, std::uint16_t>(block, body);
  }
  if (block.copy != nullptr) return sweep_as<kStates, true, float>(block, body);
  return sweep_as<kStates, false, float>(block, body);
}

/// The first `count` values, then zeros.
template <class T>
HWY_INLINE Lanes load_some(const T* from, std::size_t count) {
  if (HWY_LANES(float) == 1 || count == hn::Lanes(Tag())) return load_grad(from);
  HWY_ALIGN T padded[HWY_LANES(float)] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return load_grad(padded);
}

/// A sum of products in double precision.
class ProductSum {
 public:
  HWY_INLINE ProductSum() : low_(hn::Zero(kWide)), high_(hn::Zero(kWide)) {}
  HWY_INLINE void add(Lanes a, Lanes b) {
    low_ = hn::Add(low_, hn::Mul(hn::PromoteTo(kWide, hn::LowerHalf(a)), hn::PromoteTo(kWide, hn::LowerHalf(b))));
#if HWY_TARGET != HWY_SCALAR
    const hn::Half<Tag> half;
    high_ = hn::Add(
        high_, hn::Mul(hn::PromoteTo(kWide, hn::UpperHalf(half, a)), hn::PromoteTo(kWide, hn::UpperHalf(half, b))));
#endif
  }
  HWY_INLINE double total() const { return hn::GetLane(hn::SumOfLanes(kWide, hn::Add(low_, high_))); }

 private:
#if HWY_TARGET == HWY_SCALAR
  static constexpr hn::Rebind<double, Tag> kWide{};
#else
  static constexpr hn::Rebind<double, hn::Half<Tag>> kWide{};
#endif
  hn::Vec<std::remove_const_t<decltype(kWide)>> low_, high_;
};

}  // namespace capstan::elements::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// The vector loop that all optimizer kernels share. Included once per SIMD target, after <hwy/foreach_target.h>.
#if defined(CAPSTAN_OPTIMIZERS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_OPTIMIZERS_LANES_INL_H_
#undef CAPSTAN_OPTIMIZERS_LANES_INL_H_
#else
#define CAPSTAN_OPTIMIZERS_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <type_traits>

#include "plugins/optimizers/common/block.hpp"

HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Lanes = hn::Vec<Tag>;

/// The first `count` values, then `padding`.
HWY_INLINE Lanes load_some(const float* from, std::size_t count, float padding) {
  const Tag d;
  if (count == hn::Lanes(d)) return hn::LoadU(d, from);
  HWY_ALIGN float padded[HWY_LANES(float)];
  hn::Store(hn::Set(d, padding), d, padded);
  for (std::size_t i = 0; i < count; ++i) padded[i] = from[i];
  return hn::Load(d, padded);
}

/// One vector: body(p, g, s...) changes its arguments, which are then stored. A gradient is read, never written.
template <std::size_t kStates, class Body>
HWY_INLINE void update_lanes(float* p, const float* g, float* const* s, std::size_t at, const Body& body) {
  const Tag d;
  Lanes param = hn::LoadU(d, p + at);
  const Lanes grad = hn::LoadU(d, g + at);
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
}

/// All elements of a block. The last, incomplete vector goes through zero-padded copies and the same instructions, so
/// that an element's result does not depend on where in a block it stands.
template <std::size_t kStates, class Body>
HWY_INLINE void sweep(const Block& block, const Body& body) {
  static_assert(kStates <= kMaxStates);
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= block.count; i += lanes) update_lanes<kStates>(block.param, block.grad, block.state, i, body);
  const std::size_t rest = block.count - i;
  if (rest == 0) return;

  HWY_ALIGN float padded[2 + kMaxStates][HWY_LANES(float)] = {};
  float* states[kMaxStates];
  for (std::size_t j = 0; j < rest; ++j) {
    padded[0][j] = block.param[i + j];
    padded[1][j] = block.grad[i + j];
    for (std::size_t s = 0; s < kStates; ++s) padded[2 + s][j] = block.state[s][i + j];
  }
  for (std::size_t s = 0; s < kMaxStates; ++s) states[s] = padded[2 + s];
  update_lanes<kStates>(padded[0], padded[1], states, 0, body);
  for (std::size_t j = 0; j < rest; ++j) {
    block.param[i + j] = padded[0][j];
    for (std::size_t s = 0; s < kStates; ++s) block.state[s][i + j] = padded[2 + s][j];
  }
}

/// Without storing: body(p, g, m, v) for every vector of a block. The last one is padded with zeros, and ones for the
/// second moment, so that padding never divides zero by zero.
template <class Body>
HWY_INLINE void visit(const Block& block, const Body& body) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < block.count; i += lanes) {
    const std::size_t count = block.count - i < lanes ? block.count - i : lanes;
    body(load_some(block.param + i, count, 0), load_some(block.grad + i, count, 0),
         load_some(block.state[0] + i, count, 0), load_some(block.state[1] + i, count, 1));
  }
}

/// A sum of squares in double precision.
class SquareSum {
 public:
  HWY_INLINE SquareSum() : low_(hn::Zero(kWide)), high_(hn::Zero(kWide)) {}
  HWY_INLINE void add(Lanes values) {
    const auto low = hn::PromoteTo(kWide, hn::LowerHalf(values));
    low_ = hn::Add(low_, hn::Mul(low, low));
#if HWY_TARGET != HWY_SCALAR
    const auto high = hn::PromoteTo(kWide, hn::UpperHalf(hn::Half<Tag>(), values));
    high_ = hn::Add(high_, hn::Mul(high, high));
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

HWY_INLINE Lanes all(float value) { return hn::Set(Tag(), value); }

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

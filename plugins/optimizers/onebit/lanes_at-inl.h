// Rules of steps applied to vectors. Included once per SIMD target, after elements.hpp.
#if defined(CAPSTAN_ONEBIT_LANES_AT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_ONEBIT_LANES_AT_INL_H_
#undef CAPSTAN_ONEBIT_LANES_AT_INL_H_
#else
#define CAPSTAN_ONEBIT_LANES_AT_INL_H_
#endif

#include <cstddef>
#include <cstring>

#include "plugins/optimizers/onebit/step_rules.hpp"

HWY_BEFORE_NAMESPACE();
namespace capstan::elements::HWY_NAMESPACE {

/// The elements of a vector from `begin` on.
struct LanesAt {
  using Value = Elements;
  std::size_t begin;

  HWY_INLINE Elements operator()(const float* array) const { return hn::LoadU(Tag(), array + begin); }
  HWY_INLINE Elements operator()(const DeviceValues& values) const {
    if (values.type == ElementType::kFloat32) return (*this)(static_cast<const float*>(values.data));
    const HalfWords halves = hn::LoadU(HalfWordTag(), static_cast<const std::uint16_t*>(values.data) + begin);
    return values.type == ElementType::kBFloat16 ? widen_bf16(halves) : widen_f16(halves);
  }
  HWY_INLINE void put(float* array, Elements elements) const { hn::StoreU(elements.lanes, Tag(), array + begin); }
};

/// The first `count` elements of a vector from `begin` on; zeros fill it up.
struct SomeLanesAt {
  using Value = Elements;
  std::size_t begin, count;

  HWY_INLINE Elements operator()(const float* array) const {
    HWY_ALIGN float some[HWY_LANES(float)] = {};
    std::memcpy(some, array + begin, count * sizeof(float));
    return hn::LoadU(Tag(), some);
  }
  HWY_INLINE Elements operator()(const DeviceValues& values) const {
    if (values.type == ElementType::kFloat32) return (*this)(static_cast<const float*>(values.data));
    HWY_ALIGN std::uint16_t some[HWY_LANES(float)] = {};
    std::memcpy(some, static_cast<const std::uint16_t*>(values.data) + begin, count * sizeof(some[0]));
    return LanesAt{0}(DeviceValues{some, values.type});
  }
  HWY_INLINE void put(float* array, Elements elements) const {
    HWY_ALIGN float some[HWY_LANES(float)];
    hn::StoreU(elements.lanes, Tag(), some);
    std::memcpy(array + begin, some, count * sizeof(float));
  }
};

/// The sums of a rule.
class LaneSums {
 public:
  HWY_INLINE LaneSums() : greatest_(0.0f) {}
  HWY_INLINE void add(std::size_t k, Elements a, Elements b) { sums_.add(k, a, b); }
  HWY_INLINE void raise(Elements value) { greatest_ = max(greatest_, value); }
  HWY_INLINE optimizers::LayerSums total() const {
    return {sums_.total(kWeights), sums_.total(kGradients), sums_.total(kDirections),
            static_cast<float>(hn::GetLane(hn::MaxOfLanes(Tag(), greatest_.lanes)))};
  }

 private:
  ElementSums<3> sums_;
  Elements greatest_;
};

/// The first `count` elements of vectors alone count.
class SomeLaneSums {
 public:
  HWY_INLINE SomeLaneSums(LaneSums& sums, std::size_t count) : sums_(sums), live_(hn::FirstN(Tag(), count)) {}
  HWY_INLINE void add(std::size_t k, Elements a, Elements b) { sums_.add(k, live(a), live(b)); }
  HWY_INLINE void raise(Elements value) { sums_.raise(live(value)); }

 private:
  HWY_INLINE Elements live(Elements value) const { return hn::IfThenElseZero(live_, value.lanes); }

  LaneSums& sums_;
  hn::Mask<Tag> live_;
};

/// A rule at elements [begin, end).
template <class Rule>
HWY_INLINE optimizers::LayerSums apply_at(const void* raw, std::size_t begin, std::size_t end) {
  const Rule rule = *static_cast<const Rule*>(raw);  // a copy, which no store can change
  const std::size_t lanes = hn::Lanes(Tag());
  LaneSums sums;
  std::size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    if constexpr (requires { rule(LanesAt{i}, sums); }) {
      rule(LanesAt{i}, sums);
    } else {
      rule(LanesAt{i});
    }
  }
  if (i < end) {
    const SomeLanesAt rest{i, end - i};
    SomeLaneSums some(sums, end - i);
    if constexpr (requires { rule(rest, some); }) {
      rule(rest, some);
    } else {
      rule(rest);
    }
  }
  return sums.total();
}

}  // namespace capstan::elements::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// A loop over vectors of several arrays. Included once per SIMD target, after <hwy/foreach_target.h>.
#if defined(CAPSTAN_OPTIMIZERS_EACH_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_OPTIMIZERS_EACH_LANES_INL_H_
#undef CAPSTAN_OPTIMIZERS_EACH_LANES_INL_H_
#else
#define CAPSTAN_OPTIMIZERS_EACH_LANES_INL_H_
#endif

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "capstan/sdk/elements/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {
using namespace elements::HWY_NAMESPACE;

using Live = hn::Mask<Tag>;

template <class T>
HWY_INLINE void store_lanes(Lanes values, T* to) {
  if constexpr (!std::is_const_v<T>) hn::StoreU(values, Tag(), to);
}

template <class Body, std::size_t... I, class... Ts>
HWY_INLINE void one_of_lanes(const Body& body, Live live, std::index_sequence<I...>, Ts*... arrays) {
  Lanes values[] = {hn::LoadU(Tag(), arrays)...};
  body(live, values[I]...);
  (store_lanes(values[I], arrays), ...);
}

template <class Body, std::size_t... I, class... Ts>
HWY_INLINE void rest_of_lanes(const Body& body, std::size_t rest, std::index_sequence<I...> all, Ts*... arrays) {
  HWY_ALIGN float padded[sizeof...(Ts)][HWY_LANES(float)] = {};
  (std::memcpy(padded[I], arrays, rest * sizeof(float)), ...);
  one_of_lanes(body, hn::FirstN(Tag(), rest), all, static_cast<Ts*>(padded[I])...);
  const auto copy_back = [rest](auto* to, const float* from) {
    if constexpr (!std::is_const_v<std::remove_pointer_t<decltype(to)>>) std::memcpy(to, from, rest * sizeof(float));
  };
  (copy_back(arrays, padded[I]), ...);
}

/// body(live, a, b, ...) with a vector of each array, stored back where the array is not const. `live` is false for the
/// zeros that fill up the last vector: sums must leave them out.
template <class Body, class... Ts>
HWY_INLINE void each_lanes(std::size_t count, const Body& body, Ts*... arrays) {
  static_assert((std::is_same_v<std::remove_const_t<Ts>, float> && ...));
  constexpr auto kAll = std::index_sequence_for<Ts...>();
  const std::size_t lanes = hn::Lanes(Tag());
  const Live live = hn::FirstN(Tag(), lanes);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) one_of_lanes(body, live, kAll, (arrays + i)...);
  if (i < count) rest_of_lanes(body, count - i, kAll, (arrays + i)...);
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#include "plugins/attention/block_sparse/row_kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/attention/block_sparse/row_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace capstan::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Lanes = hn::Vec<Tag>;

/// Calls each(at, lanes in use) along `count` elements.
template <class Each>
HWY_INLINE void sweep(std::int64_t count, const Each& each) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(Tag()));
  std::int64_t at = 0;
  for (; at + lanes <= count; at += lanes) each(at, std::true_type());
  if (at < count) each(at, count - at);
}

HWY_INLINE Lanes load(const float* from, std::true_type) { return hn::LoadU(Tag(), from); }
HWY_INLINE Lanes load(const float* from, std::int64_t lanes) {
  HWY_ALIGN float few[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(few, from, static_cast<std::size_t>(lanes) * sizeof(float));
  return hn::Load(Tag(), few);
}
HWY_INLINE void store(Lanes values, float* to, std::true_type) { hn::StoreU(values, Tag(), to); }
HWY_INLINE void store(Lanes values, float* to, std::int64_t lanes) {
  HWY_ALIGN float few[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(values, Tag(), few);
  std::memcpy(to, few, static_cast<std::size_t>(lanes) * sizeof(float));
}
/// Calls each(at, mask of the lanes in use) along a row of a tile, whose stride is a multiple of every vector.
template <class Each>
HWY_INLINE void sweep_tile(std::int64_t count, const Each& each) {
  const Tag tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto all = hn::FirstN(tag, static_cast<std::size_t>(lanes));
  std::int64_t at = 0;
  for (; at + lanes <= count; at += lanes) each(at, all);
  if (at < count) each(at, hn::FirstN(tag, static_cast<std::size_t>(count - at)));
}

HWY_INLINE float largest(const float* row, std::int64_t count) {
  const Tag tag;
  const Lanes none = hn::Set(tag, -std::numeric_limits<float>::infinity());
  Lanes most = none;
  sweep_tile(count, [&](std::int64_t at, auto used)
                        HWY_ATTR { most = hn::Max(most, hn::IfThenElse(used, hn::Load(tag, row + at), none)); });
  return hn::GetLane(hn::MaxOfLanes(tag, most));
}

/// exp(x) for x <= 0 to 2e-7 of its value where that is above 1e-9, and 0 below 2^-126: 2^n 2^f with x / ln 2 = n + f,
/// and 2^f by a Taylor polynomial. Half the instructions of Highway's exp, which serves every x, and makes 0 of NaN.
HWY_INLINE Lanes exp_of_none_above_zero(Lanes x) {
  const Tag tag;
  const hn::RebindToSigned<Tag> whole;
  const Lanes lowest = hn::Set(tag, -126.0F);
  const Lanes t = hn::Max(lowest, hn::Mul(x, hn::Set(tag, 1.44269504F)));  // the second of two where one is NaN
  const Lanes n = hn::Round(t), f = hn::Sub(t, n);
  // (ln 2)^k / k!
  Lanes p = hn::Set(tag, 1.54035304e-4F);
  p = hn::MulAdd(p, f, hn::Set(tag, 1.33335581e-3F));
  p = hn::MulAdd(p, f, hn::Set(tag, 9.61812911e-3F));
  p = hn::MulAdd(p, f, hn::Set(tag, 5.55041087e-2F));
  p = hn::MulAdd(p, f, hn::Set(tag, 2.40226507e-1F));
  p = hn::MulAdd(p, f, hn::Set(tag, 6.93147181e-1F));
  p = hn::MulAdd(p, f, hn::Set(tag, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(whole, n), hn::Set(whole, 127)));
  return hn::IfThenZeroElse(hn::Le(t, lowest), hn::Mul(p, hn::BitCast(tag, exponent)));
}

/// Replaces scores by exp(score - minus), those behind `count` by 0, and gives their sum.
HWY_INLINE float exp_row(float* row, std::int64_t count, std::int64_t keys, float minus) {
  const Tag tag;
  const Lanes shift = hn::Set(tag, minus);
  Lanes sum = hn::Zero(tag);
  sweep_tile(count, [&](std::int64_t at, auto used) HWY_ATTR {
    const Lanes p = hn::IfThenElseZero(used, exp_of_none_above_zero(hn::Sub(hn::Load(tag, row + at), shift)));
    hn::Store(p, tag, row + at);
    sum = hn::Add(sum, p);
  });
  if (count < keys) std::fill(row + count, row + keys, 0.0F);
  return hn::GetLane(hn::SumOfLanes(tag, sum));
}

void take_into_softmax(const Tile& scores, float* maxima, float* sums, float* factors) {
  const float none = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    float* row = scores.values + i * scores.stride;
    const std::int64_t count = std::min(scores.limits[i], scores.keys);
    const float maximum = std::max(maxima[i], largest(row, count));
    factors[i] = maxima[i] - maximum;
    maxima[i] = maximum;
    if (maximum == none) {  // no key so far, or none but NaN
      for (std::int64_t key = 0; key < count; ++key) sums[i] += row[key] == none ? 0 : row[key];
      std::fill(row, row + scores.keys, 0.0F);
      factors[i] = 1;
      continue;
    }
    const float sum = exp_row(row, count, scores.keys, maximum);
    factors[i] = factors[i] == 0 ? 1 : std::exp(factors[i]);
    sums[i] = sums[i] * factors[i] + sum;
  }
}

void probabilities(const Tile& scores, const float* log_sum_exp) {
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    const bool any = log_sum_exp[i] != -std::numeric_limits<float>::infinity();
    exp_row(scores.values + i * scores.stride, any ? std::min(scores.limits[i], scores.keys) : 0, scores.keys,
            log_sum_exp[i]);
  }
}

void score_gradients(const Tile& p, float* gradients, const float* deltas) {
  const Tag tag;
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const float* row = p.values + i * p.stride;
    float* gradient = gradients + i * p.stride;
    const Lanes delta = hn::Set(tag, deltas[i]);
    sweep_tile(p.keys, [&](std::int64_t at, auto) HWY_ATTR {
      hn::Store(hn::Mul(hn::Load(tag, row + at), hn::Sub(hn::Load(tag, gradient + at), delta)), tag, gradient + at);
    });
  }
}

void scale_rows(float* values, std::int64_t rows, std::int64_t width, const float* factors) {
  for (std::int64_t i = 0; i < rows; ++i) {
    if (factors[i] == 1) continue;
    float* row = values + i * width;
    const Lanes factor = hn::Set(Tag(), factors[i]);
    sweep(width, [&](std::int64_t at, auto lanes)
                     HWY_ATTR { store(hn::Mul(load(row + at, lanes), factor), row + at, lanes); });
  }
}

void dot_rows(const float* a, const float* b, std::int64_t rows, std::int64_t width, float* out) {
  const Tag tag;
  for (std::int64_t i = 0; i < rows; ++i) {
    Lanes sum = hn::Zero(tag);
    sweep(width, [&](std::int64_t at, auto lanes) HWY_ATTR {
      sum = hn::MulAdd(load(a + i * width + at, lanes), load(b + i * width + at, lanes), sum);
    });
    out[i] = hn::GetLane(hn::SumOfLanes(tag, sum));
  }
}

void add_rows(float* to, std::int64_t stride, const float* from, std::int64_t rows, std::int64_t width) {
  for (std::int64_t i = 0; i < rows; ++i, to += stride, from += width) {
    sweep(width, [&](std::int64_t at, auto lanes)
                     HWY_ATTR { store(hn::Add(load(to + at, lanes), load(from + at, lanes)), to + at, lanes); });
  }
}

/// float32
HWY_INLINE void load_row(const float* from, std::int64_t width, Lanes scale, float* to) {
  sweep(width,
        [&](std::int64_t at, auto lanes) HWY_ATTR { store(hn::Mul(load(from + at, lanes), scale), to + at, lanes); });
}
HWY_INLINE void store_row(const float* from, std::int64_t width, Lanes scale, float* to) {
  load_row(from, width, scale, to);
}
/// bfloat16 and float16
template <class Half>
HWY_INLINE void load_row(const Half* from, std::int64_t width, Lanes scale, float* to) {
  const Tag tag;
  const hn::Rebind<Half, Tag> half;
  sweep(width, [&](std::int64_t at, auto lanes) HWY_ATTR {
    if constexpr (std::is_same_v<decltype(lanes), std::true_type>) {
      store(hn::Mul(hn::PromoteTo(tag, hn::LoadU(half, from + at)), scale), to + at, lanes);
    } else {
      Half few[HWY_MAX_BYTES / 4] = {};
      std::memcpy(few, from + at, static_cast<std::size_t>(lanes) * sizeof(Half));
      store(hn::Mul(hn::PromoteTo(tag, hn::LoadU(half, few)), scale), to + at, lanes);
    }
  });
}

/// The nearest bfloat16 of each lane, the even one of two as near.
HWY_INLINE Lanes rounded_to_bfloat16(Lanes values) {
  const hn::RebindToUnsigned<Tag> bits_tag;
  const auto bits = hn::BitCast(bits_tag, values);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(bits_tag, 0x7FFF)));
  return hn::IfThenElse(hn::IsNaN(values), values, hn::BitCast(Tag(), rounded));
}

template <class Half>
HWY_INLINE void store_row(const float* from, std::int64_t width, Lanes scale, Half* to) {
  const hn::Rebind<Half, Tag> half;
  sweep(width, [&](std::int64_t at, auto lanes) HWY_ATTR {
    Lanes values = hn::Mul(load(from + at, lanes), scale);
    if constexpr (std::is_same_v<Half, hwy::bfloat16_t>) values = rounded_to_bfloat16(values);
    if constexpr (std::is_same_v<decltype(lanes), std::true_type>) {
      hn::StoreU(hn::DemoteTo(half, values), half, to + at);
    } else {
      Half few[HWY_MAX_BYTES / 4] = {};
      hn::StoreU(hn::DemoteTo(half, values), half, few);
      std::memcpy(to + at, few, static_cast<std::size_t>(lanes) * sizeof(Half));
    }
  });
}

template <class Element>
void load_all(const void* from, std::int64_t stride, std::int64_t rows, std::int64_t width, float scale, float* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    load_row(static_cast<const Element*>(from) + i * stride, width, hn::Set(Tag(), scale), to + i * width);
  }
}

void load_rows(const void* from, sdk::Dtype dtype, std::int64_t stride, std::int64_t rows, std::int64_t width,
               float scale, float* to) {
  if (dtype == sdk::Dtype::kFloat32) return load_all<float>(from, stride, rows, width, scale, to);
  if (dtype == sdk::Dtype::kBFloat16) return load_all<hwy::bfloat16_t>(from, stride, rows, width, scale, to);
  load_all<hwy::float16_t>(from, stride, rows, width, scale, to);
}

template <class Element>
void store_all(const float* from, std::int64_t rows, std::int64_t width, const float* factors, void* to,
               std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    store_row(from + i * width, width, hn::Set(Tag(), factors[i]), static_cast<Element*>(to) + i * stride);
  }
}

void store_rows(const float* from, std::int64_t rows, std::int64_t width, const float* factors, void* to,
                sdk::Dtype dtype, std::int64_t stride) {
  if (dtype == sdk::Dtype::kFloat32) return store_all<float>(from, rows, width, factors, to, stride);
  if (dtype == sdk::Dtype::kBFloat16) return store_all<hwy::bfloat16_t>(from, rows, width, factors, to, stride);
  store_all<hwy::float16_t>(from, rows, width, factors, to, stride);
}

}  // namespace capstan::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::attention {

HWY_EXPORT(take_into_softmax);
HWY_EXPORT(probabilities);
HWY_EXPORT(score_gradients);
HWY_EXPORT(scale_rows);
HWY_EXPORT(dot_rows);
HWY_EXPORT(add_rows);
HWY_EXPORT(load_rows);
HWY_EXPORT(store_rows);

void take_into_softmax(const Tile& scores, float* maxima, float* sums, float* factors) {
  HWY_DYNAMIC_DISPATCH(take_into_softmax)(scores, maxima, sums, factors);
}
void probabilities(const Tile& scores, const float* log_sum_exp) {
  HWY_DYNAMIC_DISPATCH(probabilities)(scores, log_sum_exp);
}
void score_gradients(const Tile& p, float* gradients, const float* deltas) {
  HWY_DYNAMIC_DISPATCH(score_gradients)(p, gradients, deltas);
}
void scale_rows(float* values, std::int64_t rows, std::int64_t width, const float* factors) {
  HWY_DYNAMIC_DISPATCH(scale_rows)(values, rows, width, factors);
}
void dot_rows(const float* a, const float* b, std::int64_t rows, std::int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(dot_rows)(a, b, rows, width, out);
}
void add_rows(float* to, std::int64_t stride, const float* from, std::int64_t rows, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(add_rows)(to, stride, from, rows, width);
}
void load_rows(const void* from, sdk::Dtype dtype, std::int64_t stride, std::int64_t rows, std::int64_t width,
               float scale, float* to) {
  HWY_DYNAMIC_DISPATCH(load_rows)(from, dtype, stride, rows, width, scale, to);
}
void store_rows(const float* from, std::int64_t rows, std::int64_t width, const float* factors, void* to,
                sdk::Dtype dtype, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(store_rows)(from, rows, width, factors, to, dtype, stride);
}

}  // namespace capstan::attention
#endif

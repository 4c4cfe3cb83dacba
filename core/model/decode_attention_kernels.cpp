#include "core/model/decode_attention_kernels.hpp"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/model/decode_attention_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace capstan::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;

float dot(const float* a, const float* b, std::int64_t width) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < width; ++i) total += a[i] * b[i];
  return total;
}

/// to += factor * from
void add_scaled(const float* from, float factor, std::int64_t width, float* to) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factors = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    hn::StoreU(hn::MulAdd(factors, hn::LoadU(d, from + i), hn::LoadU(d, to + i)), d, to + i);
  }
  for (; i < width; ++i) to[i] += factor * from[i];
}

void attend(const HeadOfToken& head) {
  const auto scale = static_cast<float>(head.scale);
  for (std::int64_t t = 0; t < head.tokens; ++t) {
    head.weights[t] = dot(head.query, head.keys + t * head.width, head.width) * scale;
  }
  const float largest = *std::max_element(head.weights, head.weights + head.tokens);
  float sum = 0;
  for (std::int64_t t = 0; t < head.tokens; ++t) sum += head.weights[t] = std::exp(head.weights[t] - largest);
  std::fill_n(head.out, head.width, 0.0f);
  for (std::int64_t t = 0; t < head.tokens; ++t) {
    add_scaled(head.values + t * head.width, head.weights[t] / sum, head.width, head.out);
  }
}

void norm(const float* x, const float* weight, double eps, std::int64_t rows, std::int64_t width, float* out) {
  for (std::int64_t row = 0; row < rows; ++row, x += width, out += width) {
    const float mean = dot(x, x, width) / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(mean + static_cast<float>(eps));
    for (std::int64_t i = 0; i < width; ++i) out[i] = weight[i] * (x[i] * factor);
  }
}

}  // namespace capstan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan {

HWY_EXPORT(attend);
HWY_EXPORT(norm);

void attend_to_tokens(const HeadOfToken& head) { HWY_DYNAMIC_DISPATCH(attend)(head); }

void rms_norm_rows(const float* x, const float* weight, double eps, std::int64_t rows, std::int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(norm)(x, weight, eps, rows, width, out);
}

}  // namespace capstan
#endif

// Each weight is read from memory once and used for all rows: with few rows, memory bounds the time.

#include "core/model/few_rows_kernels.hpp"

#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/model/few_rows_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace capstan::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

inline Vector widened(Floats d, const float* from) { return hn::LoadU(d, from); }

template <class Narrow>
Vector widened(Floats d, const Narrow* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<Narrow, Floats>(), from));
}

inline float widened(const float* from) { return *from; }

template <class Narrow>
float widened(const Narrow* from) {
  const hn::CappedTag<float, 1> one;
  return hn::GetLane(hn::PromoteTo(one, hn::LoadU(hn::Rebind<Narrow, decltype(one)>(), from)));
}

/// The elements that fill no vector, behind the sum of those that do.
template <class Weight>
float with_rest(Floats d, Vector sum, const float* x, const Weight* w, std::int64_t from, std::int64_t width) {
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (std::int64_t i = from; i < width; ++i) total += x[i] * widened(w + i);
  return total;
}

/// One row, one weight row.
template <class Weight>
float product(const float* x, const Weight* w, std::int64_t width) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) sum = hn::MulAdd(widened(d, w + i), hn::LoadU(d, x + i), sum);
  return with_rest(d, sum, x, w, i, width);
}

/// Weight rows that are read at once, and used for all rows meanwhile. In a large weight they lie an eighth of it
/// apart: the hardware fetches ahead of each of these streams, and memory gives more to eight than to one. In a small
/// one they are neighbours, because streams take their time to get going.
struct Streams {
  static constexpr std::int64_t kCount = 8;
  static constexpr std::int64_t kLarge = 256 << 10;  // elements

  Streams(std::int64_t outputs, std::int64_t width)
      : steps(outputs / kCount), far(outputs * width >= kLarge), apart(far ? steps : 1), ahead(far ? 1 : kCount) {}
  std::int64_t first(std::int64_t step) const { return far ? step : step * kCount; }

  std::int64_t steps;
  bool far;
  std::int64_t apart;  // weight rows from one stream to the next
  std::int64_t ahead;  // weight rows from one step to the next
};

/// One row by the weight rows of all streams, from `w` on.
template <class Weight>
void one_by_eight(const float* x, const Weight* w, const Streams& streams, std::int64_t width, float* out) {
  const Floats d;
  const std::int64_t apart = streams.apart * width, ahead = streams.ahead * width, out_apart = streams.apart;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Weight *w1 = w + apart, *w2 = w1 + apart, *w3 = w2 + apart, *w4 = w3 + apart, *w5 = w4 + apart,
               *w6 = w5 + apart, *w7 = w6 + apart;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    const auto xs = hn::LoadU(d, x + i);
    const auto add = [&](Vector& sum, const Weight* from) HWY_ATTR {
      hwy::Prefetch(from + i + ahead);
      sum = hn::MulAdd(widened(d, from + i), xs, sum);
    };
    add(s0, w);
    add(s1, w1);
    add(s2, w2);
    add(s3, w3);
    add(s4, w4);
    add(s5, w5);
    add(s6, w6);
    add(s7, w7);
  }
  out[0] = with_rest(d, s0, x, w, i, width);
  out[out_apart] = with_rest(d, s1, x, w1, i, width);
  out[2 * out_apart] = with_rest(d, s2, x, w2, i, width);
  out[3 * out_apart] = with_rest(d, s3, x, w3, i, width);
  out[4 * out_apart] = with_rest(d, s4, x, w4, i, width);
  out[5 * out_apart] = with_rest(d, s5, x, w5, i, width);
  out[6 * out_apart] = with_rest(d, s6, x, w6, i, width);
  out[7 * out_apart] = with_rest(d, s7, x, w7, i, width);
}

/// Four rows by the weight rows of two streams, from `w` on. `row_apart`: from a row's output to the next row's.
template <class Weight>
void four_by_two(const float* x, const Weight* w, const Streams& streams, std::int64_t width, float* out,
                 std::int64_t row_apart) {
  const Floats d;
  const Weight* const v = w + streams.apart * width;
  const std::int64_t ahead = streams.ahead * width;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float *x1 = x + width, *x2 = x1 + width, *x3 = x2 + width;
  auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    hwy::Prefetch(w + i + ahead);
    hwy::Prefetch(v + i + ahead);
    const auto ws = widened(d, w + i), vs = widened(d, v + i);
    const auto xs0 = hn::LoadU(d, x + i), xs1 = hn::LoadU(d, x1 + i);
    const auto xs2 = hn::LoadU(d, x2 + i), xs3 = hn::LoadU(d, x3 + i);
    a0 = hn::MulAdd(ws, xs0, a0);
    b0 = hn::MulAdd(vs, xs0, b0);
    a1 = hn::MulAdd(ws, xs1, a1);
    b1 = hn::MulAdd(vs, xs1, b1);
    a2 = hn::MulAdd(ws, xs2, a2);
    b2 = hn::MulAdd(vs, xs2, b2);
    a3 = hn::MulAdd(ws, xs3, a3);
    b3 = hn::MulAdd(vs, xs3, b3);
  }
  const auto give = [&](float* to, Vector a, Vector b, const float* of) HWY_ATTR {
    to[0] = with_rest(d, a, of, w, i, width);
    to[streams.apart] = with_rest(d, b, of, v, i, width);
  };
  give(out, a0, b0, x);
  give(out + row_apart, a1, b1, x1);
  give(out + 2 * row_apart, a2, b2, x2);
  give(out + 3 * row_apart, a3, b3, x3);
}

template <class Weight>
void multiply(const RowsTimesWeight& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = call.width, outputs = call.outputs;
  const Streams streams(end - begin, width);
  const auto* const weight = static_cast<const Weight*>(call.weight);
  for (std::int64_t step = 0; step < streams.steps; ++step) {
    const std::int64_t first = begin + streams.first(step);
    const Weight* const w = weight + first * width;
    std::int64_t row = 0;
    for (; row + 4 <= call.rows; row += 4) {
      for (std::int64_t pair = 0; pair < Streams::kCount; pair += 2) {
        four_by_two(call.input + row * width, w + pair * streams.apart * width, streams, width,
                    call.out + row * outputs + first + pair * streams.apart, outputs);
      }
    }
    for (; row < call.rows; ++row) {
      one_by_eight(call.input + row * width, w, streams, width, call.out + row * outputs + first);
    }
  }
  for (std::int64_t o = begin + streams.steps * Streams::kCount; o < end; ++o) {
    for (std::int64_t row = 0; row < call.rows; ++row) {
      call.out[row * outputs + o] = product(call.input + row * width, weight + o * width, width);
    }
  }
}

void multiply_float(const RowsTimesWeight& call, std::int64_t begin, std::int64_t end) {
  multiply<float>(call, begin, end);
}
void multiply_bfloat16(const RowsTimesWeight& call, std::int64_t begin, std::int64_t end) {
  multiply<hwy::bfloat16_t>(call, begin, end);
}
void multiply_half(const RowsTimesWeight& call, std::int64_t begin, std::int64_t end) {
  multiply<hwy::float16_t>(call, begin, end);
}

}  // namespace capstan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan {

HWY_EXPORT(multiply_float);
HWY_EXPORT(multiply_bfloat16);
HWY_EXPORT(multiply_half);

void multiply_rows(const RowsTimesWeight& call, std::int64_t begin, std::int64_t end) {
  switch (call.type) {
    case WeightType::kFloat:
      return HWY_DYNAMIC_DISPATCH(multiply_float)(call, begin, end);
    case WeightType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(multiply_bfloat16)(call, begin, end);
    case WeightType::kHalf:
      return HWY_DYNAMIC_DISPATCH(multiply_half)(call, begin, end);
  }
}

}  // namespace capstan
#endif

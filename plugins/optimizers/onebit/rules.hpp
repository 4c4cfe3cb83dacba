#pragma once

#include <cmath>

#include "plugins/optimizers/onebit/compression_rule.hpp"
#include "plugins/optimizers/onebit/fixed_order.hpp"
#include "plugins/optimizers/onebit/kernels.hpp"

// What Kernels does to one index, with the roundings of the CPU's loops. body(i) for each index, in any order; those
// that return something are added up. `Grad` gives a gradient's element as float32.
namespace capstan::optimizers::rules {

CAPSTAN_RULE inline Total square_of(float value) { return {static_cast<double>(value) * static_cast<double>(value)}; }

// Steps of 1-bit Adam (Tang et al. 2021), 0/1 Adam (Lu et al. 2022) and 1-bit LAMB (Li et al. 2021).

CAPSTAN_RULE inline float blended(const Moments& n, float m, float grad) {
  return first_average(n, m, grad * n.grad_scale);
}
CAPSTAN_RULE inline float denominator(float eps, float v) { return std::sqrt(v) + eps; }
CAPSTAN_RULE inline float direction(const StepRates& n, float p, float m, float v) {
  return mul_add(n.decay, p, m / denominator(n.eps, v));
}
CAPSTAN_RULE inline float moved(const StepRates& n, float p, float m, float v) {
  return mul_add(-n.lr, direction(n, p, m, v), p);
}

/// The warm-up, a rule for sweep().
struct Adaptive {
  static constexpr int kStates = 2;
  AdaptiveNumbers n;
  CAPSTAN_RULE void operator()(float& p, float grad, float* state) const {
    const float g = grad * n.moments.grad_scale;
    state[0] = first_average(n.moments, state[0], g);
    state[1] = second_average(n.moments, state[1], g);
    p = moved(n.rates, p, state[0], state[1]);
  }
};

struct Copy {
  const float* from;
  float* to;
  CAPSTAN_RULE void operator()(std::size_t i) const { to[i] = from[i]; }
};

struct Fill {
  float* to;
  float value;
  CAPSTAN_RULE void operator()(std::size_t i) const { to[i] = value; }
};

template <class Grad>
struct Widen {
  Grad grad;
  float* out;
  CAPSTAN_RULE void operator()(std::size_t i) const { out[i] = grad(i); }
};

struct Divide {
  const float* values;
  float divisor;
  float* out;
  CAPSTAN_RULE void operator()(std::size_t i) const { out[i] = values[i] / divisor; }
};

struct Mask {
  const std::uint8_t* keep;
  std::size_t run;
  float* values;
  CAPSTAN_RULE void operator()(std::size_t i) const {
    if (keep[i / run] == 0) values[i] = 0;
  }
};

struct Measure {
  const float* values;
  CAPSTAN_RULE Total operator()(std::size_t i) const { return square_of(values[i]); }
};

template <class Grad>
struct AddGradient {
  Grad grad;
  float factor;
  float* error;
  CAPSTAN_RULE Total operator()(std::size_t i) const {
    return square_of(error[i] = mul_add(grad(i), factor, error[i]));
  }
};

template <class Grad>
struct AddBlended {
  Moments n;
  const float* m;
  Grad grad;
  float factor;
  float* error;
  CAPSTAN_RULE Total operator()(std::size_t i) const {
    return square_of(error[i] = mul_add(factor, blended(n, m[i], grad(i)), error[i]));
  }
};

struct AddPreconditioned {
  float eps;
  const float *u, *v;
  float* error;
  CAPSTAN_RULE Total operator()(std::size_t i) const {
    return square_of(error[i] = mul_add(u[i], denominator(eps, v[i]), error[i]));
  }
};

template <class Grad>
struct Blend {
  Moments n;
  Grad grad;
  float* m;
  CAPSTAN_RULE void operator()(std::size_t i) const { m[i] = blended(n, m[i], grad(i)); }
};

struct FrozenStep {
  StepRates n;
  const float *m, *v;
  float* p;
  CAPSTAN_RULE void operator()(std::size_t i) const { p[i] = moved(n, p[i], m[i], v[i]); }
};

struct BlendAndStep {
  AdaptiveNumbers n;
  const float *grad, *v;
  float *m, *p;
  CAPSTAN_RULE void operator()(std::size_t i) const {
    const float mean = blended(n.moments, m[i], grad[i]);
    m[i] = mean;
    p[i] = moved(n.rates, p[i], mean, v[i]);
  }
};

template <class Grad>
struct LocalStep {
  AdaptiveNumbers n;
  Grad grad;
  const float *common, *v;
  float *m, *u, *p;
  CAPSTAN_RULE void operator()(std::size_t i) const {
    const float mean = blended(n.moments, m[i], grad(i));
    const float way = mul_add(-n.rates.lr, direction(n.rates, p[i], mean, v[i]), u[i]);
    m[i] = mean;
    u[i] = way;
    p[i] = common[i] + way;
  }
};

struct JoinStep {
  float eps, divisor;  // minus the sum of the rates
  const float* v;
  float *u, *common, *m, *p;
  CAPSTAN_RULE void operator()(std::size_t i) const {
    const float way = u[i];
    const float start = common[i] + way / denominator(eps, v[i]);
    m[i] = way / divisor;
    common[i] = start;
    p[i] = start;
    u[i] = 0;
  }
};

template <class Grad>
struct BlendAndMeasure {
  AdaptiveNumbers n;
  Grad grad;
  const float* p;
  float *m, *v;
  CAPSTAN_RULE LayerSums operator()(std::size_t i) const {
    const float g = grad(i) * n.moments.grad_scale;
    const float mean = first_average(n.moments, m[i], g), square = second_average(n.moments, v[i], g);
    m[i] = mean;
    v[i] = square;
    LayerSums sums;
    sums.weights = square_of(p[i]).value;
    sums.directions = square_of(direction(n.rates, p[i], mean, square)).value;
    return sums;
  }
};

struct RefreshAndMeasure {
  AdaptiveNumbers n;
  float scaling;
  const float *averaged, *p, *v;
  float *m, *fresh;
  CAPSTAN_RULE LayerSums operator()(std::size_t i) const {
    const float before = m[i], mean = averaged[i] / scaling;
    const float g = mul_add(-n.moments.beta1, before, mean) / n.moments.one_minus_beta1;
    const float newer = second_average(n.moments, fresh[i], g);
    m[i] = mean;
    fresh[i] = newer;
    const float below = denominator(n.rates.eps, v[i]);
    const float gradient = mean / below;
    LayerSums sums;
    sums.weights = square_of(p[i]).value;
    sums.gradients = square_of(gradient).value;
    sums.directions = square_of(mul_add(n.rates.decay, p[i], gradient)).value;
    sums.factor = below / denominator(n.rates.eps, newer);
    return sums;
  }
};

// Compression, eight elements an index: a byte of signs. All eight are read before any is written, so that enough is
// under way to fill the memory's bandwidth.

struct Eight {
  float values[8];
  std::size_t count;  // real ones; the others are 0
};

CAPSTAN_RULE inline Eight eight_at(const float* values, std::size_t byte, std::size_t count) {
  Eight eight{};
  const std::size_t begin = 8 * byte;
  eight.count = begin >= count ? 0 : count - begin < 8 ? count - begin : 8;
  const float* from = values + begin;
#ifdef __CUDA_ARCH__
  if (eight.count == 8 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, 8};
  }
#endif
  for (std::size_t k = 0; k < 8; ++k) {
    if (k < eight.count) eight.values[k] = from[k];
  }
  return eight;
}

CAPSTAN_RULE inline void put(const Eight& eight, float* to) {
#ifdef __CUDA_ARCH__
  if (eight.count == 8 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    const float* v = eight.values;
    reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
#endif
  for (std::size_t k = 0; k < 8; ++k) {
    if (k < eight.count) to[k] = eight.values[k];
  }
}

/// The scales of shares, once for each: a division and a root in double precision.
struct Scales {
  const OutgoingShare* shares;
  float* scales;
  CAPSTAN_RULE void operator()(std::size_t i) const {
    scales[i] = scale_of(*shares[i].squares, shares[i].elements);
    memcpy(shares[i].scale, scales + i, sizeof(float));
  }
};

struct Compress {
  const OutgoingShare* shares;
  const float* scales;
  CAPSTAN_RULE void operator()(std::size_t item, std::size_t byte) const {
    const OutgoingShare& share = shares[item];
    const float scale = scales[item];
    Eight eight = eight_at(share.values, byte, share.count);
    std::uint8_t signs = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      if (eight.values[k] >= 0) signs |= bit_of(k);
      eight.values[k] = missed(eight.values[k], scale);
    }
    share.signs[byte] = signs;
    put(eight, share.values + 8 * byte);
  }
};

struct Serve {
  const ArrivedShare* shares;
  CAPSTAN_RULE Total operator()(std::size_t item, std::size_t byte) const {
    const ArrivedShare& share = shares[item];
    Eight eight = eight_at(share.values, byte, share.count);
    float sums[8] = {};
    for (std::size_t rank = 0; rank < share.ranks; ++rank) {
      const std::uint8_t signs = share.signs[rank * share.stride + byte];
      const float scale = scale_at(share, rank);
      for (std::size_t k = 0; k < 8; ++k) sums[k] += signs & bit_of(k) ? scale : -scale;
    }
    Total total;
    for (std::size_t k = 0; k < 8; ++k) {
      eight.values[k] = sums[k] + eight.values[k];
      if (k < eight.count) total.add(square_of(eight.values[k]));
    }
    put(eight, share.values + 8 * byte);
    return total;
  }
  CAPSTAN_RULE void put_total(std::size_t item, const Total& total) const { *shares[item].squares = total.value; }
};

/// Expands byte i of the signs, counted from the byte that holds element `begin`.
struct Expand {
  ArrivedBuffer buffer;
  std::size_t begin, count;
  float* out;
  CAPSTAN_RULE void operator()(std::size_t i) const {
    const std::size_t byte = begin / 8 + i;
    const std::size_t rank = 8 * byte / buffer.padded;
    const std::uint8_t signs = buffer.signs[rank * buffer.stride + (byte - rank * buffer.padded / 8)];
    const float scale = float_at(buffer.scale + rank * buffer.stride);
    Eight eight{{}, 8};
    for (std::size_t k = 0; k < 8; ++k) eight.values[k] = signs & bit_of(k) ? scale : -scale;
    if (8 * byte >= begin && 8 * byte + 8 <= begin + count) return put(eight, out + (8 * byte - begin));
    for (std::size_t k = 0; k < 8; ++k) {  // the first and the last byte
      const std::size_t at = 8 * byte + k;
      if (at >= begin && at < begin + count) out[at - begin] = eight.values[k];
    }
  }
};

}  // namespace capstan::optimizers::rules

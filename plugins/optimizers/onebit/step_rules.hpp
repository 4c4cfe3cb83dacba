// Steps of 1-bit Adam (Tang et al. 2021), 0/1 Adam (Lu et al. 2022) and 1-bit LAMB (Li et al. 2021):
//   p -= lr * (m / (sqrt(v) + eps) + decay*p), with v frozen once m is compressed
// After elements.hpp. Included once per SIMD target.
#if defined(CAPSTAN_ONEBIT_STEP_RULES_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_ONEBIT_STEP_RULES_HPP_
#undef CAPSTAN_ONEBIT_STEP_RULES_HPP_
#else
#define CAPSTAN_ONEBIT_STEP_RULES_HPP_
#endif

#include "capstan/sdk/elements/device_block.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"
#include "plugins/optimizers/onebit/layer_sums.hpp"
#include "plugins/optimizers/onebit/rates.hpp"

// A rule is called as rule(at), or rule(at, sums), for elements in any order. At a place, at(array) are the elements of
// an array there as at.Value, one or as many as a vector holds, and at.put(array, elements) stores them. A gradient,
// which may be of 16 bits, is read as float32. sums.add(k, a, b) adds a * b in double precision to sum k, and
// sums.raise(a) keeps the greatest a.
CAPSTAN_RULES

template <class V>
CAPSTAN_RULE V blended(const Moments& n, V m, V grad) {
  return first_average(n, m, grad * n.grad_scale);
}
template <class V>
CAPSTAN_RULE V denominator(float eps, V v) {
  return sqrt(v) + eps;
}
template <class V>
CAPSTAN_RULE V direction(const StepRates& n, V p, V m, V v) {
  return mul_add(V(n.decay), p, m / denominator(n.eps, v));
}
template <class V>
CAPSTAN_RULE V moved(const StepRates& n, V p, V m, V v) {
  return neg_mul_add(V(n.lr), direction(n, p, m, v), p);
}

/// The warm-up, in which both moments follow the gradient. States: exp_avg, exp_avg_sq.
struct AdaptiveRule {
  static constexpr int kStates = 2;
  AdaptiveNumbers n;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    const V g = grad * n.moments.grad_scale;
    state[0] = first_average(n.moments, state[0], g);
    state[1] = second_average(n.moments, state[1], g);
    p = moved(n.rates, p, state[0], state[1]);
  }
};

namespace step_rules {

struct Copy {
  const float* from;
  float* to;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    at.put(to, at(from));
  }
};

struct Fill {
  float* to;
  float value;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    at.put(to, typename At::Value(value));
  }
};

struct Widen {
  DeviceValues grad;
  float* out;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    at.put(out, at(grad));
  }
};

struct Divide {
  const float* values;
  float divisor;
  float* out;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    at.put(out, at(values) / divisor);
  }
};

struct Measure {
  const float* values;
  template <class At, class Sums>
  CAPSTAN_RULE void operator()(const At& at, Sums& sums) const {
    const auto value = at(values);
    sums.add(0, value, value);
  }
};

struct AddGradient {
  DeviceValues grad;
  float factor;
  float* error;
  template <class At, class Sums>
  CAPSTAN_RULE void operator()(const At& at, Sums& sums) const {
    using V = typename At::Value;
    const V sum = mul_add(at(grad), V(factor), at(error));
    at.put(error, sum);
    sums.add(0, sum, sum);
  }
};

struct AddBlended {
  Moments n;
  const float* m;
  DeviceValues grad;
  float factor;
  float* error;
  template <class At, class Sums>
  CAPSTAN_RULE void operator()(const At& at, Sums& sums) const {
    using V = typename At::Value;
    const V sum = mul_add(V(factor), blended(n, at(m), at(grad)), at(error));
    at.put(error, sum);
    sums.add(0, sum, sum);
  }
};

struct AddPreconditioned {
  float eps;
  const float *u, *v;
  float* error;
  template <class At, class Sums>
  CAPSTAN_RULE void operator()(const At& at, Sums& sums) const {
    const auto sum = mul_add(at(u), denominator(eps, at(v)), at(error));
    at.put(error, sum);
    sums.add(0, sum, sum);
  }
};

struct Blend {
  Moments n;
  DeviceValues grad;
  float* m;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    at.put(m, blended(n, at(m), at(grad)));
  }
};

struct FrozenStep {
  StepRates n;
  const float *m, *v;
  float* p;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    at.put(p, moved(n, at(p), at(m), at(v)));
  }
};

struct BlendAndStep {
  AdaptiveNumbers n;
  const float *grad, *v;
  float *m, *p;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    const auto mean = blended(n.moments, at(m), at(grad));
    const auto param = moved(n.rates, at(p), mean, at(v));
    at.put(m, mean);
    at.put(p, param);
  }
};

struct LocalStep {
  AdaptiveNumbers n;
  DeviceValues grad;
  const float *common, *v;
  float *m, *u, *p;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    using V = typename At::Value;
    const V mean = blended(n.moments, at(m), at(grad));
    const V way = neg_mul_add(V(n.rates.lr), direction(n.rates, at(p), mean, at(v)), at(u));
    const V param = at(common) + way;
    at.put(m, mean);
    at.put(u, way);
    at.put(p, param);
  }
};

struct JoinStep {
  float eps, divisor;  // minus the sum of the rates
  const float* v;
  float *u, *common, *m, *p;
  template <class At>
  CAPSTAN_RULE void operator()(const At& at) const {
    using V = typename At::Value;
    const V way = at(u);
    const V start = at(common) + way / denominator(eps, at(v));
    at.put(m, way / divisor);
    at.put(common, start);
    at.put(p, start);
    at.put(u, V(0.0f));
  }
};

struct BlendAndMeasure {
  AdaptiveNumbers n;
  DeviceValues grad;
  const float* p;
  float *m, *v;
  template <class At, class Sums>
  CAPSTAN_RULE void operator()(const At& at, Sums& sums) const {
    using V = typename At::Value;
    const V param = at(p), g = at(grad) * n.moments.grad_scale;
    const V mean = first_average(n.moments, at(m), g), square = second_average(n.moments, at(v), g);
    at.put(m, mean);
    at.put(v, square);
    const V way = direction(n.rates, param, mean, square);
    sums.add(kWeights, param, param);
    sums.add(kDirections, way, way);
  }
};

struct RefreshAndMeasure {
  AdaptiveNumbers n;
  float scaling;
  const float *averaged, *p, *v;
  float *m, *fresh;
  template <class At, class Sums>
  CAPSTAN_RULE void operator()(const At& at, Sums& sums) const {
    using V = typename At::Value;
    const V param = at(p), mean = at(averaged) / scaling;
    const V g = neg_mul_add(V(n.moments.beta1), at(m), mean) / n.moments.one_minus_beta1;
    const V newer = second_average(n.moments, at(fresh), g);
    at.put(m, mean);
    at.put(fresh, newer);
    const V below = denominator(n.rates.eps, at(v));
    const V gradient = mean / below;
    const V way = mul_add(V(n.rates.decay), param, gradient);
    sums.add(kWeights, param, param);
    sums.add(kGradients, gradient, gradient);
    sums.add(kDirections, way, way);
    sums.raise(below / denominator(n.rates.eps, newer));
  }
};

}  // namespace step_rules

CAPSTAN_RULES_END

#endif

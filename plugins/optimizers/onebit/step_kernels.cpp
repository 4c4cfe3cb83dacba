#include "plugins/optimizers/onebit/step_kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/onebit/step_kernels.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"
#include "plugins/optimizers/onebit/each_lanes-inl.h"

// Steps of 1-bit Adam (Tang et al. 2021), 0/1 Adam (Lu et al. 2022) and 1-bit LAMB (Li et al. 2021):
//   p -= lr * (m / (sqrt(v) + eps) + decay*p), with v frozen once m is compressed
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

struct RateLanes {
  explicit RateLanes(const StepRates& rates) : lr(all(rates.lr)), eps(all(rates.eps)), decay(all(rates.decay)) {}

  HWY_INLINE Lanes denominator(Lanes v) const { return hn::Add(hn::Sqrt(v), eps); }
  HWY_INLINE Lanes direction(Lanes p, Lanes m, Lanes v) const {
    return hn::MulAdd(decay, p, hn::Div(m, denominator(v)));
  }
  HWY_INLINE Lanes moved(Lanes p, Lanes m, Lanes v) const { return hn::NegMulAdd(lr, direction(p, m, v), p); }

  Lanes lr, eps, decay;
};

HWY_INLINE Lanes blended(const MomentLanes& moments, Lanes m, Lanes grad) {
  return moments.first(m, hn::Mul(grad, moments.grad_scale));
}

void adaptive_kernel(const Block& block, const void* raw) {
  const auto& numbers = *static_cast<const AdaptiveNumbers*>(raw);
  const MomentLanes moments(numbers.moments);
  const RateLanes rates(numbers.rates);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& m, Lanes& v) HWY_ATTR {
    const Lanes g = hn::Mul(grad, moments.grad_scale);
    m = moments.first(m, g);
    v = moments.second(v, g);
    p = rates.moved(p, m, v);
  });
}

void blend_gradient(const Moments& numbers, const float* grad, float* m, std::size_t count) {
  const MomentLanes moments(numbers);
  each_lanes(
      count, [&](Live, Lanes g, Lanes& mean) HWY_ATTR { mean = blended(moments, mean, g); }, grad, m);
}

double add_blended(const Moments& numbers, const float* m, const float* grad, float factor, float* error,
                   std::size_t count) {
  const MomentLanes moments(numbers);
  const Lanes factors = all(factor);
  ProductSum squares;
  each_lanes(
      count,
      [&](Live, Lanes mean, Lanes g, Lanes& sum) HWY_ATTR {
        sum = hn::MulAdd(factors, blended(moments, mean, g), sum);
        squares.add(sum, sum);
      },
      m, grad, error);
  return squares.total();
}

void frozen_step(const StepRates& numbers, const float* m, const float* v, float* p, std::size_t count) {
  const RateLanes rates(numbers);
  each_lanes(
      count, [&](Live, Lanes mean, Lanes square, Lanes& param) HWY_ATTR { param = rates.moved(param, mean, square); },
      m, v, p);
}

void local_step(const AdaptiveNumbers& numbers, const float* grad, const float* common, const float* v, float* m,
                float* u, float* p, std::size_t count) {
  const MomentLanes moments(numbers.moments);
  const RateLanes rates(numbers.rates);
  each_lanes(
      count,
      [&](Live, Lanes g, Lanes start, Lanes square, Lanes& mean, Lanes& way, Lanes& param) HWY_ATTR {
        mean = blended(moments, mean, g);
        way = hn::NegMulAdd(rates.lr, rates.direction(param, mean, square), way);
        param = hn::Add(start, way);
      },
      grad, common, v, m, u, p);
}

double add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count) {
  const RateLanes rates({0, eps, 0});
  ProductSum squares;
  each_lanes(
      count,
      [&](Live, Lanes way, Lanes square, Lanes& sum) HWY_ATTR {
        sum = hn::MulAdd(way, rates.denominator(square), sum);
        squares.add(sum, sum);
      },
      u, v, error);
  return squares.total();
}

void join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
               std::size_t count) {
  const RateLanes rates({0, eps, 0});
  const Lanes divisor = all(-rate_sum);
  each_lanes(
      count,
      [&](Live, Lanes square, Lanes& way, Lanes& start, Lanes& mean, Lanes& param) HWY_ATTR {
        mean = hn::Div(way, divisor);
        start = hn::Add(start, hn::Div(way, rates.denominator(square)));
        param = start;
        way = hn::Zero(Tag());
      },
      v, u, common, m, p);
}

LayerSums blend_and_measure(const AdaptiveNumbers& numbers, const float* grad, const float* p, float* m, float* v,
                            std::size_t count) {
  const MomentLanes moments(numbers.moments);
  const RateLanes rates(numbers.rates);
  ProductSum weights, directions;
  each_lanes(
      count,
      [&](Live live, Lanes gradient, Lanes param, Lanes& mean, Lanes& square) HWY_ATTR {
        const Lanes g = hn::Mul(gradient, moments.grad_scale);
        mean = moments.first(mean, g);
        square = moments.second(square, g);
        weights.add(param, param);
        const Lanes direction = hn::IfThenElseZero(live, rates.direction(param, mean, square));
        directions.add(direction, direction);
      },
      grad, p, m, v);
  return {weights.total(), 0, directions.total(), 0};
}

LayerSums refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged, const float* p,
                              const float* v, float* m, float* fresh, std::size_t count) {
  const MomentLanes moments(numbers.moments);
  const RateLanes rates(numbers.rates);
  const Lanes scalings = all(scaling);
  ProductSum weights, gradients, directions;
  Lanes factor = hn::Zero(Tag());
  each_lanes(
      count,
      [&](Live live, Lanes average, Lanes param, Lanes square, Lanes& mean, Lanes& newer) HWY_ATTR {
        const Lanes before = mean;
        mean = hn::Div(average, scalings);
        const Lanes g = hn::Div(hn::NegMulAdd(moments.beta1, before, mean), moments.one_minus_beta1);
        newer = moments.second(newer, g);
        const Lanes denominator = rates.denominator(square);
        const Lanes gradient = hn::IfThenElseZero(live, hn::Div(mean, denominator));
        const Lanes direction = hn::MulAdd(rates.decay, param, gradient);
        weights.add(param, param);
        gradients.add(gradient, gradient);
        directions.add(direction, direction);
        factor = hn::Max(factor, hn::IfThenElseZero(live, hn::Div(denominator, rates.denominator(newer))));
      },
      averaged, p, v, m, fresh);
  return {weights.total(), gradients.total(), directions.total(),
          static_cast<float>(hn::GetLane(hn::MaxOfLanes(Tag(), factor)))};
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(adaptive_kernel);
HWY_EXPORT(blend_gradient);
HWY_EXPORT(add_blended);
HWY_EXPORT(frozen_step);
HWY_EXPORT(local_step);
HWY_EXPORT(add_preconditioned);
HWY_EXPORT(join_step);
HWY_EXPORT(blend_and_measure);
HWY_EXPORT(refresh_and_measure);

void adaptive_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(adaptive_kernel)(block, numbers); }
void blend_gradient(const Moments& moments, const float* grad, float* m, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(blend_gradient)(moments, grad, m, count);
}
double add_blended(const Moments& moments, const float* m, const float* grad, float factor, float* error,
                   std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(add_blended)(moments, m, grad, factor, error, count);
}
void frozen_step(const StepRates& rates, const float* m, const float* v, float* p, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(frozen_step)(rates, m, v, p, count);
}
void local_step(const AdaptiveNumbers& numbers, const float* grad, const float* common, const float* v, float* m,
                float* u, float* p, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(local_step)(numbers, grad, common, v, m, u, p, count);
}
double add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(add_preconditioned)(eps, u, v, error, count);
}
void join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
               std::size_t count) {
  HWY_DYNAMIC_DISPATCH(join_step)(eps, rate_sum, v, u, common, m, p, count);
}
LayerSums blend_and_measure(const AdaptiveNumbers& numbers, const float* grad, const float* p, float* m, float* v,
                            std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(blend_and_measure)(numbers, grad, p, m, v, count);
}
LayerSums refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged, const float* p,
                              const float* v, float* m, float* fresh, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(refresh_and_measure)(numbers, scaling, averaged, p, v, m, fresh, count);
}

}  // namespace capstan::optimizers
#endif

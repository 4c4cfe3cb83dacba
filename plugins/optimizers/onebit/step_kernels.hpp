#pragma once

#include <cstddef>

#include "capstan/sdk/elements/block.hpp"
#include "plugins/optimizers/onebit/layer_sums.hpp"
#include "plugins/optimizers/onebit/rates.hpp"

namespace capstan::optimizers {

/// A step that still adapts the second moment, a BlockKernel with AdaptiveNumbers. States: exp_avg, exp_avg_sq.
void adaptive_kernel(const Block& block, const void* numbers);

/// m = beta1*m + (1-beta1)*grad*scale
void blend_gradient(const Moments& moments, const float* grad, float* m, std::size_t count);
/// error += factor * (beta1*m + (1-beta1)*grad*scale). Returns the sum of squares of the result.
double add_blended(const Moments& moments, const float* m, const float* grad, float factor, float* error,
                   std::size_t count);
/// p -= lr * (m / (sqrt(v) + eps) + decay*p)
void frozen_step(const StepRates& rates, const float* m, const float* v, float* p, std::size_t count);

/// A step of one rank by itself: m as blend_gradient;  u -= lr * (m / (sqrt(v) + eps) + decay*p);  p = common + u
void local_step(const AdaptiveNumbers& numbers, const float* grad, const float* common, const float* v, float* m,
                float* u, float* p, std::size_t count);
/// error += u * (sqrt(v) + eps). Returns the sum of squares of the result.
double add_preconditioned(float eps, const float* u, const float* v, float* error, std::size_t count);
/// Takes the average of what add_preconditioned() gave, in u:
/// m = -u/rate_sum;  p = common = common + u / (sqrt(v) + eps);  u = 0
void join_step(float eps, float rate_sum, const float* v, float* u, float* common, float* m, float* p,
               std::size_t count);

/// m, v as adaptive_kernel; p stays. No factor.
LayerSums blend_and_measure(const AdaptiveNumbers& numbers, const float* grad, const float* p, float* m, float* v,
                            std::size_t count);
/// Takes the exchanged momentum in `averaged`: m = averaged / scaling and, from what that says of the gradient, the
/// fresh second moment.
LayerSums refresh_and_measure(const AdaptiveNumbers& numbers, float scaling, const float* averaged, const float* p,
                              const float* v, float* m, float* fresh, std::size_t count);

}  // namespace capstan::optimizers

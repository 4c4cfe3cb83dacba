#pragma once

#include "plugins/optimizers/adam/adam_kernel.hpp"
#include "plugins/optimizers/common/device_rule.hpp"

namespace capstan::optimizers {

/// Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), AMSGrad (Reddi et al. 2018), with the CPU kernel's
/// roundings:
///   g += l2 * p;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g^2;
///   p -= lr * ((m/c1) / (sqrt(v/c2) + eps) + decay*p)
/// States: exp_avg, exp_avg_sq, with kAmsGrad max_exp_avg_sq.
template <bool kAmsGrad>
struct AdamRule {
  AdamNumbers n;

  CAPSTAN_ON_DEVICE void operator()(float& p, float grad, float* state) const {
    const float g = decayed_gradient(p, grad, n.moments.grad_scale, n.moments.l2);
    state[0] = first_moment(n.moments, state[0], g);
    state[1] = second_moment(n.moments, state[1], g);
    float second = state[1];
    if constexpr (kAmsGrad) second = state[2] = std::fmax(state[2], state[1]);
    const float denominator = fused(std::sqrt(second), n.inverse_sqrt_c2, n.eps);
    const float direction = fused(n.decay, p, (state[0] * n.inverse_c1) / denominator);
    p = fused(-n.lr, direction, p);
  }
};

}  // namespace capstan::optimizers

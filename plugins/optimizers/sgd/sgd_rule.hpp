#pragma once

#include "plugins/optimizers/common/device_rule.hpp"
#include "plugins/optimizers/sgd/sgd_kernel.hpp"

namespace capstan::optimizers {

/// Stochastic gradient descent, with the CPU kernel's roundings:  g += l2*p;  p -= lr * g
struct SgdRule {
  SgdNumbers n;

  CAPSTAN_ON_DEVICE void operator()(float& p, float grad, float*) const {
    p = fused(-n.lr, decayed_gradient(p, grad, n.grad_scale, n.l2), p);
  }
};

/// The same with momentum (Sutskever et al. 2013), as torch has it:
///   b = momentum*b + (1-dampening)*g, the first b being g itself;  p -= lr * (nesterov ? g + momentum*b : b)
/// State: momentum_buffer.
struct SgdMomentumRule {
  SgdNumbers n;

  CAPSTAN_ON_DEVICE void operator()(float& p, float grad, float* buffer) const {
    const float g = decayed_gradient(p, grad, n.grad_scale, n.l2);
    *buffer = fused(n.keep, *buffer, n.take * g);
    p = fused(-n.lr, fused(n.from_buffer, *buffer, n.from_gradient * g), p);
  }
};

}  // namespace capstan::optimizers

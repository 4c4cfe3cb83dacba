#pragma once

#include <cmath>

#include "plugins/optimizers/common/moments.hpp"

// Rules of single elements for GPUs. They are ordinary C++ too, so that a machine without a GPU can hold them against
// the CPU's kernels. Compiled without contraction, every operation is rounded once.
#ifdef __CUDACC__
#define CAPSTAN_ON_DEVICE __host__ __device__
#else
#define CAPSTAN_ON_DEVICE
#endif

namespace capstan::optimizers {

/// a * b + c, rounded once: where the CPU's kernels say MulAdd.
CAPSTAN_ON_DEVICE inline float fused(float a, float b, float c) { return std::fma(a, b, c); }

/// grad * scale + l2 * p, with a rounding after each operation: a gradient that the decay cancels must give exactly 0.
CAPSTAN_ON_DEVICE inline float decayed_gradient(float p, float grad, float grad_scale, float l2) {
  return grad * grad_scale + p * l2;
}

/// m = beta1 * m + (1 - beta1) * g
CAPSTAN_ON_DEVICE inline float first_moment(const Moments& n, float m, float g) {
  return fused(n.beta1, m, n.one_minus_beta1 * g);
}

/// v = beta2 * v + (1 - beta2) * g^2
CAPSTAN_ON_DEVICE inline float second_moment(const Moments& n, float v, float g) {
  return fused(n.beta2, v, n.one_minus_beta2 * (g * g));
}

}  // namespace capstan::optimizers

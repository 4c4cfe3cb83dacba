// Vector forms of the moments. Included once per SIMD target, after <hwy/foreach_target.h>.
#if defined(CAPSTAN_OPTIMIZERS_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_OPTIMIZERS_MOMENTS_INL_H_
#undef CAPSTAN_OPTIMIZERS_MOMENTS_INL_H_
#else
#define CAPSTAN_OPTIMIZERS_MOMENTS_INL_H_
#endif

#include "capstan/sdk/elements/lanes-inl.h"
#include "plugins/optimizers/common/moments.hpp"

HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {
using namespace elements::HWY_NAMESPACE;

/// grad * scale + l2 * p, with a rounding after each operation: a gradient that the decay cancels must give exactly 0.
HWY_INLINE Lanes decayed_gradient(Lanes p, Lanes grad, Lanes grad_scale, Lanes l2) {
  return hn::Add(hn::Mul(grad, grad_scale), hn::Mul(p, l2));
}

struct MomentLanes {
  explicit MomentLanes(const Moments& n)
      : grad_scale(all(n.grad_scale)),
        l2(all(n.l2)),
        beta1(all(n.beta1)),
        one_minus_beta1(all(n.one_minus_beta1)),
        beta2(all(n.beta2)),
        one_minus_beta2(all(n.one_minus_beta2)) {}

  HWY_INLINE Lanes gradient(Lanes p, Lanes grad) const { return decayed_gradient(p, grad, grad_scale, l2); }
  /// m = beta1 * m + (1 - beta1) * g
  HWY_INLINE Lanes first(Lanes m, Lanes g) const { return hn::MulAdd(beta1, m, hn::Mul(one_minus_beta1, g)); }
  /// v = beta2 * v + (1 - beta2) * g^2
  HWY_INLINE Lanes second(Lanes v, Lanes g) const {
    return hn::MulAdd(beta2, v, hn::Mul(one_minus_beta2, hn::Mul(g, g)));
  }

  Lanes grad_scale, l2, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

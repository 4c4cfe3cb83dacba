// Averages of the gradient and of its square in rules, after elements.hpp. Included once per SIMD target.
#if defined(CAPSTAN_ELEMENTS_MOMENT_RULES_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_ELEMENTS_MOMENT_RULES_HPP_
#undef CAPSTAN_ELEMENTS_MOMENT_RULES_HPP_
#else
#define CAPSTAN_ELEMENTS_MOMENT_RULES_HPP_
#endif

#include "plugins/optimizers/common/moments.hpp"

CAPSTAN_RULES

/// grad * scale + l2 * p, with a rounding after each operation: a gradient that the decay cancels must give exactly 0.
template <class V>
CAPSTAN_RULE V decayed(V p, V grad, float grad_scale, float l2) {
  return grad * grad_scale + p * l2;
}
template <class V>
CAPSTAN_RULE V decayed(const Moments& n, V p, V grad) {
  return decayed(p, grad, n.grad_scale, n.l2);
}

/// m = beta1 * m + (1 - beta1) * g
template <class V>
CAPSTAN_RULE V first_average(const Moments& n, V m, V g) {
  return mul_add(V(n.beta1), m, n.one_minus_beta1 * g);
}

/// v = beta2 * v + (1 - beta2) * g^2
template <class V>
CAPSTAN_RULE V second_average(const Moments& n, V v, V g) {
  return mul_add(V(n.beta2), v, n.one_minus_beta2 * (g * g));
}

/// Adam's averages: state[0] of the gradient, state[1] of its square. Returns the gradient, decayed.
template <class V>
CAPSTAN_RULE V take_averages(const Moments& n, V p, V grad, V* state) {
  const V g = decayed(n, p, grad);
  state[0] = first_average(n, state[0], g);
  state[1] = second_average(n, state[1], g);
  return g;
}

CAPSTAN_RULES_END

#endif

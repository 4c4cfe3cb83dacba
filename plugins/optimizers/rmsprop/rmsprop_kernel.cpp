#include "plugins/optimizers/rmsprop/rmsprop_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/rmsprop/rmsprop_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// RMSprop (Hinton 2012; centered: Graves 2013), as torch has it:
//   g += l2*p;  s = alpha*s + (1-alpha)*g^2;  a = alpha*a + (1-alpha)*g, 0 unless centered;
//   d = g / (sqrt(s - a^2) + eps);  b = momentum*b + d;  p -= lr * b, or lr * d without momentum
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

struct RmspropLanes {
  explicit RmspropLanes(const void* numbers) : RmspropLanes(*static_cast<const RmspropNumbers*>(numbers)) {}
  explicit RmspropLanes(const RmspropNumbers& n)
      : grad_scale(all(n.grad_scale)),
        l2(all(n.l2)),
        lr(all(n.lr)),
        eps(all(n.eps)),
        alpha(all(n.alpha)),
        one_minus_alpha(all(n.one_minus_alpha)),
        momentum(all(n.momentum)) {}

  HWY_INLINE Lanes direction(Lanes p, Lanes grad, Lanes& s) const {
    const Lanes g = decayed_gradient(p, grad, grad_scale, l2);
    s = hn::MulAdd(alpha, s, hn::Mul(one_minus_alpha, hn::Mul(g, g)));
    return hn::Div(g, hn::Add(hn::Sqrt(s), eps));
  }
  HWY_INLINE Lanes centered_direction(Lanes p, Lanes grad, Lanes& s, Lanes& a) const {
    const Lanes g = decayed_gradient(p, grad, grad_scale, l2);
    s = hn::MulAdd(alpha, s, hn::Mul(one_minus_alpha, hn::Mul(g, g)));
    a = hn::MulAdd(alpha, a, hn::Mul(one_minus_alpha, g));
    // A variance; rounding must not make it negative.
    const Lanes variance = hn::Max(hn::NegMulAdd(a, a, s), all(0));
    return hn::Div(g, hn::Add(hn::Sqrt(variance), eps));
  }

  Lanes grad_scale, l2, lr, eps, alpha, one_minus_alpha, momentum;
};

void rmsprop_kernel(const Block& block, const void* numbers) {
  const RmspropLanes step(numbers);
  sweep<1>(block, [&step](Lanes& p, Lanes grad, Lanes& s)
                      HWY_ATTR { p = hn::NegMulAdd(step.lr, step.direction(p, grad, s), p); });
}

void rmsprop_momentum_kernel(const Block& block, const void* numbers) {
  const RmspropLanes step(numbers);
  sweep<2>(block, [&step](Lanes& p, Lanes grad, Lanes& s, Lanes& buffer) HWY_ATTR {
    buffer = hn::MulAdd(step.momentum, buffer, step.direction(p, grad, s));
    p = hn::NegMulAdd(step.lr, buffer, p);
  });
}

void rmsprop_centered_kernel(const Block& block, const void* numbers) {
  const RmspropLanes step(numbers);
  sweep<2>(block, [&step](Lanes& p, Lanes grad, Lanes& s, Lanes& a)
                      HWY_ATTR { p = hn::NegMulAdd(step.lr, step.centered_direction(p, grad, s, a), p); });
}

void rmsprop_centered_momentum_kernel(const Block& block, const void* numbers) {
  const RmspropLanes step(numbers);
  sweep<3>(block, [&step](Lanes& p, Lanes grad, Lanes& s, Lanes& a, Lanes& buffer) HWY_ATTR {
    buffer = hn::MulAdd(step.momentum, buffer, step.centered_direction(p, grad, s, a));
    p = hn::NegMulAdd(step.lr, buffer, p);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(rmsprop_kernel);
HWY_EXPORT(rmsprop_momentum_kernel);
HWY_EXPORT(rmsprop_centered_kernel);
HWY_EXPORT(rmsprop_centered_momentum_kernel);

void rmsprop_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(rmsprop_kernel)(block, numbers); }
void rmsprop_momentum_kernel(const Block& block, const void* numbers) {
  HWY_DYNAMIC_DISPATCH(rmsprop_momentum_kernel)(block, numbers);
}
void rmsprop_centered_kernel(const Block& block, const void* numbers) {
  HWY_DYNAMIC_DISPATCH(rmsprop_centered_kernel)(block, numbers);
}
void rmsprop_centered_momentum_kernel(const Block& block, const void* numbers) {
  HWY_DYNAMIC_DISPATCH(rmsprop_centered_momentum_kernel)(block, numbers);
}

}  // namespace capstan::optimizers
#endif

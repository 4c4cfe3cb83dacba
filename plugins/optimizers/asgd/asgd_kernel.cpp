#include "plugins/optimizers/asgd/asgd_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/asgd/asgd_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Averaged SGD (Polyak and Juditsky 1992), as torch has it:
//   g += l2*p;  p = (1 - lambd*eta)*p - eta*g;  ax += mu*(p - ax);  eta = lr / (1 + lambd*lr*t)^alpha for the next
//   update
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void asgd_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const AsgdNumbers*>(numbers);
  const Lanes grad_scale = all(n.grad_scale), l2 = all(n.l2), eta = all(n.eta), shrink = all(n.shrink), mu = all(n.mu);
  sweep<1>(block, [&](Lanes& p, Lanes grad, Lanes& ax) HWY_ATTR {
    const Lanes g = decayed_gradient(p, grad, grad_scale, l2);
    p = hn::NegMulAdd(eta, g, hn::Mul(shrink, p));
    ax = hn::MulAdd(mu, hn::Sub(p, ax), ax);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(asgd_kernel);

void asgd_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(asgd_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

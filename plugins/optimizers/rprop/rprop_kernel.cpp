#include "plugins/optimizers/rprop/rprop_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/rprop/rprop_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Rprop (Riedmiller and Braun 1993), as torch has it: each weight has its own step size, which grows while the sign of
// the gradient stays and shrinks when it turns; in an update where it turned the weight waits.
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void rprop_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const RpropNumbers*>(numbers);
  const Lanes grad_scale = all(n.grad_scale), eta_minus = all(n.eta_minus), eta_plus = all(n.eta_plus);
  const Lanes least = all(n.least), greatest = all(n.greatest), keep = all(n.keep), start = all(n.start);
  const Lanes zero = all(0), one = all(1);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& previous, Lanes& size) HWY_ATTR {
    const Lanes g = hn::Mul(grad, grad_scale);
    // Signs are compared, not multiplied gradients: the product of two small gradients would vanish.
    const auto moving = hn::And(hn::Ne(g, zero), hn::Ne(previous, zero));
    const auto turned = hn::And(moving, hn::Ne(hn::CopySign(one, g), hn::CopySign(one, previous)));
    const Lanes factor = hn::IfThenElse(turned, eta_minus, hn::IfThenElse(moving, eta_plus, one));
    size = hn::Min(hn::Max(hn::Mul(hn::MulAdd(keep, size, start), factor), least), greatest);
    previous = hn::IfThenElse(turned, zero, g);
    const Lanes step = hn::IfThenElse(hn::Eq(previous, zero), zero, hn::CopySign(size, previous));
    p = hn::Sub(p, step);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(rprop_kernel);

void rprop_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(rprop_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

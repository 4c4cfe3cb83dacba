#include "plugins/optimizers/lion/lion_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/lion/lion_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Lion (Chen et al. 2023):  p -= lr * (sign(b1*m + (1-b1)*g) + decay*p);  m = b2*m + (1-b2)*g
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void lion_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const LionNumbers*>(numbers);
  const MomentLanes moments(n.moments);
  const Lanes lr = all(n.lr), decay = all(n.decay), zero = all(0), one = all(1);
  sweep<1>(block, [&](Lanes& p, Lanes grad, Lanes& m) HWY_ATTR {
    const Lanes g = moments.gradient(p, grad);
    // The sign is taken of the interpolation, before the momentum moves; that of 0 is 0.
    const Lanes blend = moments.first(m, g);
    const Lanes sign = hn::IfThenElse(hn::Eq(blend, zero), zero, hn::CopySign(one, blend));
    p = hn::NegMulAdd(lr, hn::MulAdd(decay, p, sign), p);
    m = hn::MulAdd(moments.beta2, m, hn::Mul(moments.one_minus_beta2, g));
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(lion_kernel);

void lion_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(lion_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

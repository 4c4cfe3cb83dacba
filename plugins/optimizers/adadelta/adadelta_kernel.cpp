#include "plugins/optimizers/adadelta/adadelta_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/adadelta/adadelta_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Adadelta (Zeiler 2012), as torch has it:  g += l2*p;  s = rho*s + (1-rho)*g^2;
//   delta = sqrt(a + eps) / sqrt(s + eps) * g;  a = rho*a + (1-rho)*delta^2;  p -= lr * delta
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void adadelta_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const AdadeltaNumbers*>(numbers);
  const Lanes grad_scale = all(n.grad_scale), l2 = all(n.l2), lr = all(n.lr), eps = all(n.eps);
  const Lanes rho = all(n.rho), one_minus_rho = all(n.one_minus_rho);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& s, Lanes& a) HWY_ATTR {
    const Lanes g = decayed_gradient(p, grad, grad_scale, l2);
    s = hn::MulAdd(rho, s, hn::Mul(one_minus_rho, hn::Mul(g, g)));
    const Lanes delta = hn::Mul(hn::Div(hn::Sqrt(hn::Add(a, eps)), hn::Sqrt(hn::Add(s, eps))), g);
    a = hn::MulAdd(rho, a, hn::Mul(one_minus_rho, hn::Mul(delta, delta)));
    p = hn::NegMulAdd(lr, delta, p);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(adadelta_kernel);

void adadelta_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(adadelta_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

#include "plugins/optimizers/sgd/sgd_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/sgd/sgd_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Stochastic gradient descent with momentum (Sutskever et al. 2013), as torch has it:
//   g += l2*p;  b = momentum*b + (1-dampening)*g, the first b being g itself;  p -= lr * (nesterov ? g + momentum*b :
//   b)
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void sgd_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const SgdNumbers*>(numbers);
  const Lanes grad_scale = all(n.grad_scale), l2 = all(n.l2), lr = all(n.lr);
  sweep<0>(block,
           [&](Lanes& p, Lanes grad) HWY_ATTR { p = hn::NegMulAdd(lr, decayed_gradient(p, grad, grad_scale, l2), p); });
}

void sgd_momentum_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const SgdNumbers*>(numbers);
  const Lanes grad_scale = all(n.grad_scale), l2 = all(n.l2), lr = all(n.lr);
  const Lanes keep = all(n.keep), take = all(n.take);
  const Lanes from_buffer = all(n.from_buffer), from_gradient = all(n.from_gradient);
  sweep<1>(block, [&](Lanes& p, Lanes grad, Lanes& buffer) HWY_ATTR {
    const Lanes g = decayed_gradient(p, grad, grad_scale, l2);
    buffer = hn::MulAdd(keep, buffer, hn::Mul(take, g));
    p = hn::NegMulAdd(lr, hn::MulAdd(from_buffer, buffer, hn::Mul(from_gradient, g)), p);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(sgd_kernel);
HWY_EXPORT(sgd_momentum_kernel);

void sgd_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(sgd_kernel)(block, numbers); }
void sgd_momentum_kernel(const Block& block, const void* numbers) {
  HWY_DYNAMIC_DISPATCH(sgd_momentum_kernel)(block, numbers);
}

}  // namespace capstan::optimizers
#endif

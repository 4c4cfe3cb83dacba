#include "plugins/optimizers/adagrad/adagrad_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/adagrad/adagrad_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Adagrad (Duchi et al. 2011):  h = g + l2*p;  v += h^2;  p -= lr/(1 + (t-1)*lr_decay) * h / (sqrt(v) + eps)
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void adagrad_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const AdagradNumbers*>(numbers);
  const Lanes grad_scale = all(n.grad_scale), l2 = all(n.l2), lr = all(n.lr), eps = all(n.eps),
              initial = all(n.initial);
  sweep<1>(block, [&](Lanes& p, Lanes grad, Lanes& v) HWY_ATTR {
    const Lanes h = decayed_gradient(p, grad, grad_scale, l2);
    v = hn::MulAdd(h, h, hn::Add(v, initial));
    p = hn::NegMulAdd(lr, hn::Div(h, hn::Add(hn::Sqrt(v), eps)), p);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(adagrad_kernel);

void adagrad_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(adagrad_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

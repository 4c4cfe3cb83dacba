#include "plugins/optimizers/adam/adam_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/adam/adam_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/lanes-inl.h"

// Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), AMSGrad (Reddi et al. 2018):
//   g += l2 * p;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g^2;
//   p -= lr * ((m/c1) / (sqrt(v/c2) + eps) + decay*p)
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

struct AdamLanes {
  explicit AdamLanes(const AdamNumbers& n)
      : grad_scale(all(n.grad_scale)),
        lr(all(n.lr)),
        beta1(all(n.beta1)),
        one_minus_beta1(all(n.one_minus_beta1)),
        beta2(all(n.beta2)),
        one_minus_beta2(all(n.one_minus_beta2)),
        eps(all(n.eps)),
        l2(all(n.l2)),
        decay(all(n.decay)),
        inverse_c1(all(n.inverse_c1)),
        inverse_sqrt_c2(all(n.inverse_sqrt_c2)) {}

  HWY_INLINE void moments(Lanes p, Lanes grad, Lanes& m, Lanes& v) const {
    // Two roundings on purpose: a gradient that the decay cancels must give exactly 0.
    const Lanes g = hn::Add(hn::Mul(grad, grad_scale), hn::Mul(p, l2));
    m = hn::MulAdd(beta1, m, hn::Mul(one_minus_beta1, g));
    v = hn::MulAdd(beta2, v, hn::Mul(one_minus_beta2, hn::Mul(g, g)));
  }
  HWY_INLINE void move(Lanes& p, Lanes m, Lanes v) const {
    const Lanes denominator = hn::MulAdd(hn::Sqrt(v), inverse_sqrt_c2, eps);
    const Lanes direction = hn::MulAdd(decay, p, hn::Div(hn::Mul(m, inverse_c1), denominator));
    p = hn::NegMulAdd(lr, direction, p);
  }

  Lanes grad_scale, lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, l2, decay, inverse_c1, inverse_sqrt_c2;
};

void adam_kernel(const Block& block, const void* numbers) {
  const AdamLanes step(*static_cast<const AdamNumbers*>(numbers));
  sweep<2>(block, [&step](Lanes& p, Lanes g, Lanes& m, Lanes& v) HWY_ATTR {
    step.moments(p, g, m, v);
    step.move(p, m, v);
  });
}

void amsgrad_kernel(const Block& block, const void* numbers) {
  const AdamLanes step(*static_cast<const AdamNumbers*>(numbers));
  sweep<3>(block, [&step](Lanes& p, Lanes g, Lanes& m, Lanes& v, Lanes& greatest_v) HWY_ATTR {
    step.moments(p, g, m, v);
    greatest_v = hn::Max(greatest_v, v);
    step.move(p, m, greatest_v);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(adam_kernel);
HWY_EXPORT(amsgrad_kernel);

void adam_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(adam_kernel)(block, numbers); }
void amsgrad_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(amsgrad_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

#include "plugins/optimizers/adam/adam_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/adam/adam_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), AMSGrad (Reddi et al. 2018):
//   g += l2 * p;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g^2;
//   p -= lr * ((m/c1) / (sqrt(v/c2) + eps) + decay*p)
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

struct AdamLanes {
  explicit AdamLanes(const AdamNumbers& n)
      : moments(n.moments),
        lr(all(n.lr)),
        eps(all(n.eps)),
        decay(all(n.decay)),
        inverse_c1(all(n.inverse_c1)),
        inverse_sqrt_c2(all(n.inverse_sqrt_c2)) {}

  HWY_INLINE Lanes moved(Lanes p, Lanes m, Lanes v) const {
    const Lanes denominator = hn::MulAdd(hn::Sqrt(v), inverse_sqrt_c2, eps);
    const Lanes direction = hn::MulAdd(decay, p, hn::Div(hn::Mul(m, inverse_c1), denominator));
    return hn::NegMulAdd(lr, direction, p);
  }

  MomentLanes moments;
  Lanes lr, eps, decay, inverse_c1, inverse_sqrt_c2;
};

void adam_kernel(const Block& block, const void* numbers) {
  const AdamLanes step(*static_cast<const AdamNumbers*>(numbers));
  sweep<2>(block, [&step](Lanes& p, Lanes g, Lanes& m, Lanes& v) HWY_ATTR {
    const Lanes gradient = step.moments.gradient(p, g);
    m = step.moments.first(m, gradient);
    v = step.moments.second(v, gradient);
    p = step.moved(p, m, v);
  });
}

void amsgrad_kernel(const Block& block, const void* numbers) {
  const AdamLanes step(*static_cast<const AdamNumbers*>(numbers));
  sweep<3>(block, [&step](Lanes& p, Lanes g, Lanes& m, Lanes& v, Lanes& greatest_v) HWY_ATTR {
    const Lanes gradient = step.moments.gradient(p, g);
    m = step.moments.first(m, gradient);
    v = step.moments.second(v, gradient);
    greatest_v = hn::Max(greatest_v, v);
    p = step.moved(p, m, greatest_v);
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

#include "plugins/optimizers/nadam/nadam_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/nadam/nadam_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// NAdam (Dozat 2016), as torch has it:  p -= lr*decay*p, or g += l2*p;  m, v as Adam's;
//   p -= (grad_rate*g + moment_rate*m) / (sqrt(v/c2) + eps)
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void nadam_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const NadamNumbers*>(numbers);
  const MomentLanes moments(n.moments);
  const Lanes eps = all(n.eps), decay = all(n.decay), grad_rate = all(n.grad_rate), moment_rate = all(n.moment_rate);
  const Lanes inverse_sqrt_c2 = all(n.inverse_sqrt_c2);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& m, Lanes& v) HWY_ATTR {
    const Lanes g = moments.gradient(p, grad);
    m = moments.first(m, g);
    v = moments.second(v, g);
    const Lanes ahead = hn::MulAdd(moment_rate, m, hn::Mul(grad_rate, g));
    const Lanes denominator = hn::MulAdd(hn::Sqrt(v), inverse_sqrt_c2, eps);
    p = hn::Sub(hn::NegMulAdd(decay, p, p), hn::Div(ahead, denominator));
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(nadam_kernel);

void nadam_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(nadam_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

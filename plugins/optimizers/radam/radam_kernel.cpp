#include "plugins/optimizers/radam/radam_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/radam/radam_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// RAdam (Liu et al. 2020), as torch has it:  p -= lr*decay*p, or g += l2*p;  m, v as Adam's;
//   p -= rate * m, or rate * m / (sqrt(v) + eps) once the variance of the second moment is tractable
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void radam_momentum_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const RadamNumbers*>(numbers);
  const MomentLanes moments(n.moments);
  const Lanes decay = all(n.decay), rate = all(n.rate);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& m, Lanes& v) HWY_ATTR {
    const Lanes g = moments.gradient(p, grad);
    m = moments.first(m, g);
    v = moments.second(v, g);
    p = hn::NegMulAdd(rate, m, hn::NegMulAdd(decay, p, p));
  });
}

void radam_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const RadamNumbers*>(numbers);
  const MomentLanes moments(n.moments);
  const Lanes eps = all(n.eps), decay = all(n.decay), rate = all(n.rate);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& m, Lanes& v) HWY_ATTR {
    const Lanes g = moments.gradient(p, grad);
    m = moments.first(m, g);
    v = moments.second(v, g);
    const Lanes direction = hn::Div(m, hn::Add(hn::Sqrt(v), eps));
    p = hn::NegMulAdd(rate, direction, hn::NegMulAdd(decay, p, p));
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(radam_momentum_kernel);
HWY_EXPORT(radam_kernel);

void radam_momentum_kernel(const Block& block, const void* numbers) {
  HWY_DYNAMIC_DISPATCH(radam_momentum_kernel)(block, numbers);
}
void radam_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(radam_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

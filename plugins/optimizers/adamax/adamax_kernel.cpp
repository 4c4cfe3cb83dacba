#include "plugins/optimizers/adamax/adamax_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/adamax/adamax_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// Adamax (Kingma and Ba 2015), as torch has it:  g += l2*p;  m = b1*m + (1-b1)*g;  u = max(b2*u, |g| + eps);
//   p -= rate * m / u
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void adamax_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const AdamaxNumbers*>(numbers);
  const MomentLanes moments(n.moments);
  const Lanes eps = all(n.eps), rate = all(n.rate);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& m, Lanes& u) HWY_ATTR {
    const Lanes g = moments.gradient(p, grad);
    m = moments.first(m, g);
    u = hn::Max(hn::Mul(moments.beta2, u), hn::Add(hn::Abs(g), eps));
    p = hn::NegMulAdd(rate, hn::Div(m, u), p);
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(adamax_kernel);

void adamax_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(adamax_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

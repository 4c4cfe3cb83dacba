#include "plugins/optimizers/muon/muon_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/muon/muon_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// AdamW (Loshchilov and Hutter 2019) for the parameters that Muon does not take:
//   m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g^2;  p -= lr*decay*p;  p -= lr/c1 * m / (sqrt(v)/sqrt(c2) + eps)
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

void muon_adam_kernel(const Block& block, const void* numbers) {
  const auto& n = *static_cast<const MuonAdamNumbers*>(numbers);
  const MomentLanes moments(n.moments);
  const Lanes inverse_root = all(n.inverse_root), eps = all(n.eps), decay = all(n.decay), rate = all(n.rate);
  sweep<2>(block, [&](Lanes& p, Lanes grad, Lanes& m, Lanes& v) HWY_ATTR {
    const Lanes g = moments.gradient(p, grad);
    m = moments.first(m, g);
    v = moments.second(v, g);
    const Lanes direction = hn::Div(m, hn::MulAdd(hn::Sqrt(v), inverse_root, eps));
    p = hn::NegMulAdd(rate, direction, hn::NegMulAdd(decay, p, p));
  });
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(muon_adam_kernel);

void muon_adam_kernel(const Block& block, const void* numbers) {
  HWY_DYNAMIC_DISPATCH(muon_adam_kernel)(block, numbers);
}

}  // namespace capstan::optimizers
#endif

#include "plugins/optimizers/lamb/lamb_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/lamb/lamb_kernel.cpp"
#include <hwy/foreach_target.h>

#include "plugins/optimizers/common/moments-inl.h"

// LAMB (You et al. 2020) as DeepSpeed has it:  m, v as Adam's;  u = m / (sqrt(v) + eps) + decay*p, without bias
// correction;  p -= lr * correction * trust * u  with the trust ratio |p| / |u| of the whole parameter
HWY_BEFORE_NAMESPACE();
namespace capstan::optimizers::HWY_NAMESPACE {

struct LambLanes {
  explicit LambLanes(const void* numbers) : LambLanes(*static_cast<const LambNumbers*>(numbers)) {}
  explicit LambLanes(const LambNumbers& n)
      : moments(n.moments),
        eps_inside(all(n.eps_inside)),
        eps_outside(all(n.eps_outside)),
        decay(all(n.decay)),
        rate(all(n.rate)) {}

  HWY_INLINE Lanes direction(Lanes p, Lanes grad, Lanes& m, Lanes& v) const {
    const Lanes g = moments.gradient(p, grad);
    m = moments.first(m, g);
    v = moments.second(v, g);
    const Lanes denominator = hn::Add(hn::Sqrt(hn::Add(v, eps_inside)), eps_outside);
    return hn::MulAdd(decay, p, hn::Div(m, denominator));
  }

  MomentLanes moments;
  Lanes eps_inside, eps_outside, decay, rate;
};

void lamb_kernel(const Block& block, const void* numbers) {
  const LambLanes step(numbers);
  sweep<2>(block, [&step](Lanes& p, Lanes grad, Lanes& m, Lanes& v)
                      HWY_ATTR { p = hn::NegMulAdd(step.rate, step.direction(p, grad, m, v), p); });
}

// The moments are worked out as in the update but not kept, so that a measurement may be repeated or dropped. Squares
// are added in double precision: how a parameter is cut into shards must not show in the ratio.
void lamb_measure_kernel(const Block& block, const void* numbers) {
  const LambLanes step(numbers);
  SquareSum weights, directions;
  visit(block, [&](Lanes p, Lanes grad, Lanes m, Lanes v) HWY_ATTR {
    weights.add(p);
    directions.add(step.direction(p, grad, m, v));
  });
  block.sums[0] += weights.total();
  block.sums[1] += directions.total();
}

}  // namespace capstan::optimizers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::optimizers {

HWY_EXPORT(lamb_measure_kernel);
HWY_EXPORT(lamb_kernel);

void lamb_measure_kernel(const Block& block, const void* numbers) {
  HWY_DYNAMIC_DISPATCH(lamb_measure_kernel)(block, numbers);
}
void lamb_kernel(const Block& block, const void* numbers) { HWY_DYNAMIC_DISPATCH(lamb_kernel)(block, numbers); }

}  // namespace capstan::optimizers
#endif

#include "plugins/optimizers/muon/muon_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plugins/optimizers/muon/muon_kernel.cpp"
#include "capstan/sdk/elements.hpp"
#include "plugins/optimizers/common/moment_rules.hpp"

CAPSTAN_RULES

/// AdamW (Loshchilov and Hutter 2019) for the parameters that Muon does not take:
///   m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g^2;  p -= lr*decay*p;  p -= lr/c1 * m / (sqrt(v)/sqrt(c2) + eps)
struct MuonAdamRule {
  static constexpr int kStates = 2;
  MuonAdamNumbers n;
  template <class V>
  CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
    take_averages(n.moments, p, grad, state);
    const V direction = state[0] / mul_add(sqrt(state[1]), V(n.inverse_root), V(n.eps));
    p = neg_mul_add(V(n.rate), direction, neg_mul_add(V(n.decay), p, p));
  }
};
CAPSTAN_RULE_KERNEL(MuonAdamRule)

CAPSTAN_RULES_END

#if CAPSTAN_ONCE
CAPSTAN_RULE_EXPORT(MuonAdamRule)

namespace capstan::optimizers {

BlockKernel muon_adam_kernel() { return KernelOf<MuonAdamRule>::kKernel; }

}  // namespace capstan::optimizers
#endif

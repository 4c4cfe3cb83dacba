// Rules of single elements, written once for every instruction set of the CPU and for devices.
//
//   #include "plugins/optimizers/common/elements.hpp"
//
//   CAPSTAN_RULES
//   struct LionRule {                        // the numbers of a group at a step, floats
//     static constexpr int kStates = 1;
//     float lr, beta;
//     template <class V>                     // an element, or as many as a vector holds
//     CAPSTAN_RULE void operator()(V& p, V grad, V* state) const { state[0] = mul_add(V(beta), state[0], grad); ... }
//   };
//   CAPSTAN_RULE_KERNEL(LionRule)
//   CAPSTAN_RULES_END
//
//   #if CAPSTAN_ONCE
//   CAPSTAN_RULE_EXPORT(LionRule)          // and CAPSTAN_RULE_NUMBERS(Base) for a struct that is no rule by itself
//   ... class Lion with  template <class Updates> void update(const sdk::Slots&, const sdk::Step&, Updates&) const
//   CAPSTAN_PLUGIN(&sdk::optimizer<OnElements<Lion>, "Lion">)
//   #endif
//
// The build compiles such a file as it is for the CPU, where Highway includes the file again for each instruction set,
// and with CAPSTAN_RULES_ON_DEVICE for a device: see capstan_add_element_optimizer() in
// plugins/optimizers/CMakeLists.txt. In a rule V has + - * /, comparisons, which give masks with & | !, and
//
//   mul_add(a, b, c)       a * b + c, rounded once where the processor has the instruction
//   neg_mul_add(a, b, c)   c - a * b, likewise
//   sqrt, abs, max, min, copy_sign(magnitude, sign), select(mask, where_true, where_false)
//
// A float stands for a V of equal elements. Nothing else is rounded once: a * b + c rounds twice everywhere.

#ifdef CAPSTAN_RULES_ON_DEVICE
#include "plugins/optimizers/common/element_device.cuh"
#else
#include "plugins/optimizers/common/element_lanes-inl.h"
#endif

// Optimizers that are rules of single elements, written once for every instruction set of the CPU and for devices.
//
//   #include <capstan/sdk/elements.hpp>
//
//   CAPSTAN_RULES
//   struct MomentumRule {               // the numbers of a group at a step
//     static constexpr int kStates = 1; // 0 to 3, float32 here whatever their tensors' type
//     float lr, beta, grad_scale;
//     template <class V>                // an element, or as many as a vector holds
//     CAPSTAN_RULE void operator()(V& p, V grad, V* state) const {
//       state[0] = mul_add(V(beta), state[0], grad * grad_scale);
//       p = neg_mul_add(V(lr), state[0], p);
//     }
//   };
//   CAPSTAN_RULE_KERNEL(MomentumRule)
//   CAPSTAN_RULES_END
//
//   #if CAPSTAN_ONCE
//   CAPSTAN_RULE_EXPORT(MomentumRule)   // and CAPSTAN_RULE_NUMBERS(Base) for a base that is no rule by itself
//
//   class Momentum {
//    public:
//     Momentum(const capstan::sdk::Host&, const capstan::sdk::Params&);
//     void update(const capstan::sdk::Slots& slots, const capstan::sdk::Step& step,
//                 capstan::elements::ElementUpdates& updates) const {
//       const auto rules = step.each_group([&](const capstan::sdk::Group& group) { return rule_of(group); });
//       for (const capstan::sdk::Slot slot : slots) updates.add(slot, {0}, rules[slot.group()]);  // {0}: its states
//       updates.run();
//     }
//   };
//   CAPSTAN_PLUGIN(&capstan::sdk::optimizer<capstan::elements::OnElements<Momentum>, "Momentum">)
//   #endif
//
// A rule with kMeasures adds to sums in double precision and changes nothing. It has the same macros:
//
//   struct NormMeasure {
//     static constexpr int kStates = 0;
//     static constexpr int kMeasures = 1;
//     template <class V, class Sums>
//     CAPSTAN_RULE void operator()(V p, V grad, const V* state, Sums& sums) const {
//       sums.add(0, p, p);              // sum 0 grows by p * p of each element
//     }
//   };
//
//   static constexpr std::size_t kMeasures = 1;  // in the class, with measures = 1 in the manifest
//   void measure(const capstan::sdk::Slots& slots, const capstan::sdk::Step& step,
//                capstan::elements::ElementMeasures& measures) const {
//     const auto rules = step.each_group([&](const capstan::sdk::Group& group) { return measure_of(group); });
//     for (std::size_t i = 0; i < slots.size(); ++i) measures.add(i, {}, rules[slots[i].group()]);
//     measures.run();
//   }
//
// measure_model() likewise, with kMeasuresModel and measures_model. step.total(i, k) and step.model_total(k) are the
// sums in update(). Their additions have a fixed order on each kind of processor, and another one on a device than on
// the CPU.
//
// capstan_add_elementwise() of the SDK's CMake files builds such a file for the CPU, where Highway includes the file
// again for each instruction set, and with CAPSTAN_RULES_ON_DEVICE for devices. Rules lie in a namespace that
// CAPSTAN_RULES opens, within capstan::elements. There V has + - * /, comparisons, which give masks with & | !, and
//
//   mul_add(a, b, c)       a * b + c, rounded once where the processor has the instruction
//   neg_mul_add(a, b, c)   c - a * b, likewise
//   sqrt, abs, max, min, copy_sign(magnitude, sign), select(mask, where_true, where_false)
//
// A float stands for a V of equal elements. Whatever is not mul_add rounds after each operation, on every processor, so
// that the plugin for a device has the bits of the one for the CPU. A rule must depend on its arguments and its numbers
// alone: it is called for padding, too, and for elements in any order.

#if defined(CAPSTAN_RULES_ON_DEVICE)
#include "capstan/sdk/elements/device_rules.cuh"
#elif defined(CAPSTAN_RULES_FOR_DEVICE)
#include "capstan/sdk/elements/device_updates.hpp"
#else
#include "capstan/sdk/elements/host_rules-inl.h"
#endif

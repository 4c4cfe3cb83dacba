// The CPU's half of elements.hpp. Included once per SIMD target.
#include <hwy/foreach_target.h>

#if defined(CAPSTAN_ELEMENTS_HOST_RULES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAPSTAN_ELEMENTS_HOST_RULES_INL_H_
#undef CAPSTAN_ELEMENTS_HOST_RULES_INL_H_
#else
#define CAPSTAN_ELEMENTS_HOST_RULES_INL_H_
#endif

#include "capstan/sdk/elements/host_updates.hpp"
#include "capstan/sdk/elements/lanes-inl.h"
#include "capstan/sdk/elements/measure_rule.hpp"

#ifndef CAPSTAN_RULES
#define CAPSTAN_RULES     \
  HWY_BEFORE_NAMESPACE(); \
  namespace capstan::elements::HWY_NAMESPACE {
#define CAPSTAN_RULES_END \
  }                       \
  HWY_AFTER_NAMESPACE();
#define CAPSTAN_RULE HWY_INLINE
#define CAPSTAN_RULE_KERNEL(Rule) \
  inline void Rule##_kernel(const Block& block, const void* rule) { apply_rule<Rule>(block, rule); }
#define CAPSTAN_ONCE HWY_ONCE
#define CAPSTAN_RULE_NUMBERS(Numbers) \
  namespace capstan::elements {       \
  using HWY_NAMESPACE::Numbers;       \
  }
#define CAPSTAN_RULE_EXPORT(Rule)                                                                             \
  namespace capstan::elements {                                                                               \
  using HWY_NAMESPACE::Rule;                                                                                  \
  namespace {                                                                                                 \
  HWY_EXPORT(Rule##_kernel);                                                                                  \
  void run_##Rule(const Block& block, const void* rule) { HWY_DYNAMIC_DISPATCH(Rule##_kernel)(block, rule); } \
  }                                                                                                           \
  template <>                                                                                                 \
  struct KernelOf<Rule> {                                                                                     \
    static constexpr BlockKernel kKernel = &run_##Rule;                                                       \
  };                                                                                                          \
  }
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::elements::HWY_NAMESPACE {

/// True or false for each element of a vector.
struct ElementMask {
  hn::Mask<Tag> lanes;
  friend HWY_INLINE ElementMask operator&(ElementMask a, ElementMask b) { return {hn::And(a.lanes, b.lanes)}; }
  friend HWY_INLINE ElementMask operator|(ElementMask a, ElementMask b) { return {hn::Or(a.lanes, b.lanes)}; }
  friend HWY_INLINE ElementMask operator!(ElementMask a) { return {hn::Not(a.lanes)}; }
};

/// The elements of a vector.
struct Elements {
  Lanes lanes;

  Elements() = default;
  HWY_INLINE Elements(Lanes values) : lanes(values) {}
  HWY_INLINE Elements(float value) : lanes(hn::Set(Tag(), value)) {}

  friend HWY_INLINE Elements operator+(Elements a, Elements b) { return hn::Add(a.lanes, b.lanes); }
  friend HWY_INLINE Elements operator-(Elements a, Elements b) { return hn::Sub(a.lanes, b.lanes); }
  friend HWY_INLINE Elements operator*(Elements a, Elements b) { return hn::Mul(a.lanes, b.lanes); }
  friend HWY_INLINE Elements operator/(Elements a, Elements b) { return hn::Div(a.lanes, b.lanes); }
  friend HWY_INLINE ElementMask operator==(Elements a, Elements b) { return {hn::Eq(a.lanes, b.lanes)}; }
  friend HWY_INLINE ElementMask operator!=(Elements a, Elements b) { return {hn::Ne(a.lanes, b.lanes)}; }
  friend HWY_INLINE ElementMask operator<(Elements a, Elements b) { return {hn::Lt(a.lanes, b.lanes)}; }
  friend HWY_INLINE ElementMask operator>(Elements a, Elements b) { return {hn::Gt(a.lanes, b.lanes)}; }
};

HWY_INLINE Elements mul_add(Elements a, Elements b, Elements c) { return hn::MulAdd(a.lanes, b.lanes, c.lanes); }
HWY_INLINE Elements neg_mul_add(Elements a, Elements b, Elements c) { return hn::NegMulAdd(a.lanes, b.lanes, c.lanes); }
HWY_INLINE Elements sqrt(Elements a) { return hn::Sqrt(a.lanes); }
HWY_INLINE Elements abs(Elements a) { return hn::Abs(a.lanes); }
HWY_INLINE Elements max(Elements a, Elements b) { return hn::Max(a.lanes, b.lanes); }
HWY_INLINE Elements min(Elements a, Elements b) { return hn::Min(a.lanes, b.lanes); }
HWY_INLINE Elements copy_sign(Elements magnitude, Elements sign) { return hn::CopySign(magnitude.lanes, sign.lanes); }
HWY_INLINE Elements select(ElementMask mask, Elements where_true, Elements where_false) {
  return hn::IfThenElse(mask.lanes, where_true.lanes, where_false.lanes);
}

/// The sums of a measuring rule.
template <std::size_t kMeasures>
class ElementSums {
 public:
  HWY_INLINE ElementSums() {}  // a defaulted one would be compiled without the instruction set
  /// Sum k grows by a * b of each element, in double precision.
  HWY_INLINE void add(std::size_t k, Elements a, Elements b) { sums_[k].add(a.lanes, b.lanes); }
  HWY_INLINE double total(std::size_t k) const { return sums_[k].total(); }

 private:
  ProductSum sums_[kMeasures];
};

/// Sums to which the first elements of a vector alone are added.
template <std::size_t kMeasures>
class SomeElementSums {
 public:
  HWY_INLINE SomeElementSums(ElementSums<kMeasures>& sums, std::size_t count)
      : sums_(sums), live_(hn::FirstN(Tag(), count)) {}
  HWY_INLINE void add(std::size_t k, Elements a, Elements b) {
    sums_.add(k, hn::IfThenElseZero(live_, a.lanes), hn::IfThenElseZero(live_, b.lanes));
  }

 private:
  ElementSums<kMeasures>& sums_;
  hn::Mask<Tag> live_;
};

/// One vector of a block, `count` elements of which are real.
template <class Rule, class Sums>
HWY_INLINE void measure_lanes(const Rule& rule, const Block& block, std::size_t at, std::size_t count, Sums& sums) {
  const Elements grad(block.grad_is_bf16 ? load_some(static_cast<const std::uint16_t*>(block.grad) + at, count)
                                         : load_some(static_cast<const float*>(block.grad) + at, count));
  Elements states[kMaxStates];
  for (int s = 0; s < Rule::kStates; ++s) states[s] = load_some(block.state[s] + at, count);
  rule(Elements(load_some(block.param + at, count)), grad, states, sums);
}

template <MeasureRule Rule>
HWY_INLINE void apply_rule(const Block& block, const void* numbers) {
  const Rule rule = *static_cast<const Rule*>(numbers);
  ElementSums<Rule::kMeasures> sums;
  const std::size_t lanes = hn::Lanes(Tag());
  std::size_t i = 0;
  for (; i + lanes <= block.count; i += lanes) measure_lanes(rule, block, i, lanes, sums);
  if (i < block.count) {
    SomeElementSums<Rule::kMeasures> some(sums, block.count - i);
    measure_lanes(rule, block, i, block.count - i, some);
  }
  for (std::size_t k = 0; k < Rule::kMeasures; ++k) block.sums[k] += sums.total(k);
}

/// Applies a rule to all elements of a block.
template <class Rule>
HWY_INLINE void apply_rule(const Block& block, const void* numbers) {
  const Rule rule = *static_cast<const Rule*>(numbers);  // a copy, which no store into the block can change
  sweep<Rule::kStates>(block, [&rule](Lanes& p, Lanes grad, auto&... states) HWY_ATTR {
    Elements param(p);
    Elements held[kMaxStates] = {Elements(states)...};
    rule(param, Elements(grad), held);
    p = param.lanes;
    [[maybe_unused]] std::size_t k = 0;
    ((states = held[k++].lanes), ...);
  });
}

}  // namespace capstan::elements::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

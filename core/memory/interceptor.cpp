#include "core/memory/interceptor.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>

namespace capstan {
namespace {

constexpr auto kMode = kInterceptorKey;

// LibTorch hands both the key and this to the threads that it starts for a forward or a backward. One of the two kinds
// that it keeps for others.
constexpr auto kKind = c10::DebugInfoKind::TEST_INFO_2;

struct ActivePolicy final : c10::DebugInfoBase {
  explicit ActivePolicy(OperatorPolicy& p) : policy(p) {}
  OperatorPolicy& policy;
};

class AfterOperator {
 public:
  AfterOperator(OperatorPolicy& policy, const c10::OperatorHandle& op) : policy_(policy), op_(op) {}
  ~AfterOperator() { policy_.after(op_); }

 private:
  OperatorPolicy& policy_;
  const c10::OperatorHandle& op_;
};

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode);
  OperatorPolicy* policy = active_policy();
  if (policy != nullptr && policy->looks_inside(op)) return op.redispatchBoxed(below, stack);
  // Off for everything that runs inside: only outermost operators are seen.
  const UnseenScope inside;
  if (policy == nullptr) return op.redispatchBoxed(below, stack);
  policy->before(op, *stack, op.schema().arguments().size());
  const AfterOperator after(*policy, op);
  if (!policy->stands_in(op, *stack, op.schema().arguments().size())) op.redispatchBoxed(below, stack);
  policy->returned(op, *stack);
}

}  // namespace

OperatorPolicy* active_policy() {
  auto* active = static_cast<ActivePolicy*>(c10::ThreadLocalDebugInfo::get(kKind));
  return active == nullptr ? nullptr : &active->policy;
}

void OperatorPolicies::before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) {
  for (std::size_t i = 0; i < policies_.size(); ++i) {
    try {
      policies_[i]->before(op, stack, argument_count);
    } catch (...) {
      after(op, i);
      throw;
    }
  }
}

void OperatorPolicies::after(const c10::OperatorHandle& op, std::size_t begun) noexcept {
  while (begun-- > 0) policies_[begun]->after(op);
}

void OperatorPolicies::returned(const c10::OperatorHandle& op, OperatorStack& stack) {
  for (std::size_t i = policies_.size(); i-- > 0;) policies_[i]->returned(op, stack);
}

void OperatorPolicies::after(const c10::OperatorHandle& op) noexcept { after(op, policies_.size()); }

bool OperatorPolicies::stands_in(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) {
  for (OperatorPolicy* policy : policies_) {
    if (policy->stands_in(op, stack, argument_count)) return true;
  }
  return false;
}

bool OperatorPolicies::looks_inside(const c10::OperatorHandle& op) {
  for (OperatorPolicy* policy : policies_) {
    if (policy->looks_inside(op)) return true;
  }
  return false;
}

InterceptorScope::InterceptorScope(OperatorPolicy& policy)
    : policy_(kKind, std::make_shared<ActivePolicy>(policy)),
      was_included_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}

InterceptorScope::~InterceptorScope() { c10::impl::tls_set_dispatch_key_included(kMode, was_included_); }

}  // namespace capstan

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&capstan::intercept>());
}

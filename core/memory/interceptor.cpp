#include "core/memory/interceptor.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace capstan {
namespace {

constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Backward of a graph on the CPU runs on the thread that asked for it, so one pointer a thread is enough; the key
// itself travels with LibTorch's own thread-local state.
thread_local OperatorPolicy* active_policy = nullptr;

class AfterOperator {
 public:
  AfterOperator(OperatorPolicy& policy, const c10::OperatorHandle& op) : policy_(policy), op_(op) {}
  ~AfterOperator() { policy_.after(op_); }

 private:
  OperatorPolicy& policy_;
  const c10::OperatorHandle& op_;
};

void intercept(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Off for everything that runs inside: only outermost operators are seen.
  c10::impl::ExcludeDispatchKeyGuard inside(kMode);
  OperatorPolicy* policy = active_policy;
  if (policy == nullptr) {
    op.callBoxed(stack);
    return;
  }
  policy->before(op, *stack, op.schema().arguments().size());
  const AfterOperator after(*policy, op);
  op.callBoxed(stack);
}

}  // namespace

InterceptorScope::InterceptorScope(OperatorPolicy& policy)
    : previous_(active_policy), was_included_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  active_policy = &policy;
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}

InterceptorScope::~InterceptorScope() {
  active_policy = previous_;
  c10::impl::tls_set_dispatch_key_included(kMode, was_included_);
}

}  // namespace capstan

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&capstan::intercept>());
}

#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <vector>

// Not ATen/core/stack.h, which makes every file that includes this one twice as slow to compile.
namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace capstan {

/// LibTorch's torch::jit::Stack.
using OperatorStack = std::vector<c10::IValue>;

/// What is to happen around every outermost operator of forward and backward.
class OperatorPolicy {
 public:
  virtual ~OperatorPolicy() = default;
  /// Called before the operator runs: its arguments are the last `argument_count` entries of the stack, in order. May
  /// replace them. What it throws leaves the operator's call.
  virtual void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) = 0;
  /// Called after the operator returned: its results are the last entries of the stack.
  virtual void returned(const c10::OperatorHandle&, OperatorStack&) {}
  /// Called last, after the operator returned or threw.
  virtual void after(const c10::OperatorHandle& op) noexcept = 0;
  /// Does the operator's work in its place: takes the arguments off the stack and leaves the results. After before().
  virtual bool stands_in(const c10::OperatorHandle&, OperatorStack&, std::size_t) { return false; }
  /// Whether to see the operators that this one calls, instead of this one.
  virtual bool looks_inside(const c10::OperatorHandle&) { return false; }
};

/// Several policies as one: the first comes first, and goes last.
class OperatorPolicies final : public OperatorPolicy {
 public:
  void add(OperatorPolicy& policy) { policies_.push_back(&policy); }
  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
  void returned(const c10::OperatorHandle& op, OperatorStack& stack) override;
  void after(const c10::OperatorHandle& op) noexcept override;
  bool stands_in(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
  bool looks_inside(const c10::OperatorHandle& op) override;
  bool empty() const { return policies_.empty(); }

 private:
  void after(const c10::OperatorHandle& op, std::size_t begun) noexcept;
  std::vector<OperatorPolicy*> policies_;
};

/// The dispatch key that brings operators to the interceptor.
constexpr auto kInterceptorKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// While it lives, no policy sees what this thread runs.
class UnseenScope {
 public:
  UnseenScope() : excluded_(kInterceptorKey) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard excluded_;
};

/// The policy of the innermost InterceptorScope on this thread; null: none.
OperatorPolicy* active_policy();

/// While it lives, `policy` sees every outermost operator that this thread runs, backward included, and those of
/// threads that LibTorch starts for it: operators that an operator calls inside itself are not seen, and neither is
/// anything that the policy itself runs.
///
/// A boxed fallback on a mode dispatch key sees them; unlike LibTorch's RecordFunction it may replace operands, and
/// what it throws reaches the caller.
class InterceptorScope {
 public:
  explicit InterceptorScope(OperatorPolicy& policy);
  ~InterceptorScope();
  InterceptorScope(const InterceptorScope&) = delete;
  InterceptorScope& operator=(const InterceptorScope&) = delete;

 private:
  c10::DebugInfoGuard policy_;
  bool was_included_;
};

}  // namespace capstan

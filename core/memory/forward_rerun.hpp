#pragma once

#include <atomic>
#include <cstddef>

#include "capstan/plugin.h"
#include "core/memory/interceptor.hpp"

namespace capstan {

/// Tells operators of forward that autograd runs again from backward's own: those of torch.utils.checkpoint, and of
/// autograd functions of a model that compute their forward once more. Such a function switches gradients on in a
/// backward that has them off. Parts of it that switch them off again are known by torch.utils.checkpoint's marks: its
/// hooks for saved tensors, or its node.
class ForwardRerun {
 public:
  /// A forward or a backward begins on this thread. In backward, the graph that autograd walks first is not recorded.
  void begin_forward() { begin(false); }
  void begin_backward() { begin(true); }

  /// Whether this thread runs a function of forward again. [any]
  bool now();
  /// Whether an operator that this thread runs in forward may run again: it records no graph, or hooks decide what the
  /// graph saves. [any]
  bool may_follow() const;

 private:
  void begin(bool backward);

  static constexpr int kNone = -1;
  std::size_t hooks_ = 0;              // pairs of hooks for saved tensors when the pass began
  bool backward_ = false;              // the pass
  std::atomic<int> outermost_{kNone};  // the graph that a backward walks first
};

/// Policies of backward: one that sees all operators, and policies that see those of a forward that runs again.
class BackwardPolicies final : public OperatorPolicy {
 public:
  /// `always` may be null. All must outlive the policy.
  BackwardPolicies(ForwardRerun& rerun, OperatorPolicy* always, OperatorPolicy& of_forward)
      : rerun_(rerun), always_(always) {
    if (always != nullptr) both_.add(*always);
    both_.add(of_forward);
  }

  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override {
    if (OperatorPolicy* policy = now()) policy->before(op, stack, argument_count);
  }
  void returned(const c10::OperatorHandle& op, OperatorStack& stack) override {
    if (OperatorPolicy* policy = now()) policy->returned(op, stack);
  }
  void after(const c10::OperatorHandle& op) noexcept override {
    if (OperatorPolicy* policy = now()) policy->after(op);
  }
  bool stands_in(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override {
    OperatorPolicy* policy = now();
    return policy != nullptr && policy->stands_in(op, stack, argument_count);
  }
  bool looks_inside(const c10::OperatorHandle& op) override {
    OperatorPolicy* policy = now();
    return policy != nullptr && policy->looks_inside(op);
  }

 private:
  /// An operator leaves gradients, hooks and nodes as it finds them, so that all calls for it have one answer.
  OperatorPolicy* now() { return rerun_.now() ? &both_ : always_; }

  ForwardRerun& rerun_;
  OperatorPolicy* always_;
  OperatorPolicies both_;
};

/// While it lives, layers that a backward of this thread runs again are layers of the batch. LibTorch hands it to the
/// threads that it starts for the backward.
class BatchRerunScope {
 public:
  /// Both must outlive the scope.
  BatchRerunScope(ForwardRerun& rerun, capstan_batch& batch);

 private:
  c10::DebugInfoGuard batch_;
};

/// The batch whose forward this thread runs again; null: it does not.
capstan_batch* batch_of_rerun();

}  // namespace capstan

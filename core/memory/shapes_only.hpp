#pragma once

#include "core/memory/interceptor.hpp"

namespace capstan {

/// Makes tensors on LibTorch's "meta" device, where values take no memory and setting them does nothing.
class ShapesOnlyPolicy final : public OperatorPolicy {
 public:
  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
  void after(const c10::OperatorHandle&) noexcept override {}
};

/// While it lives, what this thread builds has shapes and no values: every operator that makes a tensor on a device of
/// its choice makes it on LibTorch's "meta" device. A model of any size is built so in no time. Code that reads values
/// (data_ptr, item) throws.
class ShapesOnly {
 public:
  ShapesOnly() : scope_(policy_) {}

 private:
  ShapesOnlyPolicy policy_;
  InterceptorScope scope_;
};

}  // namespace capstan

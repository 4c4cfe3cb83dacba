#pragma once

#include "core/memory/interceptor.hpp"

namespace capstan {

/// While it lives, what this thread builds has shapes and no values: every operator that makes a tensor on a device of
/// its choice makes it on LibTorch's "meta" device, where values take no memory and setting them does nothing. A model
/// of any size is built so in no time. Code that reads values (data_ptr, item) throws.
class ShapesOnly {
 public:
  ShapesOnly() : scope_(policy_) {}

 private:
  class Policy final : public OperatorPolicy {
   public:
    void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override;
    void after(const c10::OperatorHandle&) noexcept override {}
  };

  Policy policy_;
  InterceptorScope scope_;
};

}  // namespace capstan

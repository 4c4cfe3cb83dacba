#include "core/memory/interceptor.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace capstan {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

struct Recorder final : OperatorPolicy {
  std::vector<std::string> begun, ended;
  void before(const c10::OperatorHandle& op, torch::jit::Stack&, std::size_t) override {
    begun.push_back(op.schema().name());
  }
  void after(const c10::OperatorHandle& op) noexcept override { ended.push_back(op.schema().name()); }
};

TEST(Interceptor, SeesOutermostOperatorsOnly) {
  const at::Tensor x = at::randn({2, 3}), w = at::randn({4, 3});
  Recorder recorder;
  {
    const InterceptorScope scope(recorder);
    at::linear(x, w);  // calls transpose and matmul inside
  }
  at::mm(x, w.t());
  EXPECT_THAT(recorder.begun, ElementsAre("aten::linear"));
  EXPECT_EQ(recorder.ended, recorder.begun);
}

TEST(Interceptor, SeesTheOperatorsOfBackward) {
  at::Tensor w = at::randn({4, 3}).requires_grad_();
  const at::Tensor loss = at::linear(at::randn({2, 3}), w).sum();
  Recorder recorder;
  {
    const InterceptorScope scope(recorder);
    loss.backward();
  }
  EXPECT_THAT(recorder.begun, Contains("aten::mm"));
  EXPECT_TRUE(w.grad().defined());
}

TEST(Interceptor, LetsAPolicyReplaceOperands) {
  struct Zero final : OperatorPolicy {
    void before(const c10::OperatorHandle&, torch::jit::Stack& stack, std::size_t count) override {
      c10::IValue& second = stack[stack.size() - count + 1];
      second = at::zeros_like(second.toTensor());
    }
    void after(const c10::OperatorHandle&) noexcept override {}
  } zero;
  const at::Tensor ones = at::ones({2, 2});
  at::Tensor product;
  {
    const InterceptorScope scope(zero);
    product = at::mm(ones, ones);
  }
  EXPECT_EQ(product.sum().item<float>(), 0.0F);
}

TEST(Interceptor, PassesOnWhatAPolicyThrows) {
  struct Refuse final : OperatorPolicy {
    void before(const c10::OperatorHandle&, torch::jit::Stack&, std::size_t) override {
      throw std::runtime_error("not here");
    }
    void after(const c10::OperatorHandle&) noexcept override {}
  } refuse;
  const at::Tensor x = at::ones({2, 2});
  {
    const InterceptorScope scope(refuse);
    EXPECT_THAT([&] { at::mm(x, x); }, testing::ThrowsMessage<std::runtime_error>("not here"));
  }
  EXPECT_EQ(at::mm(x, x).sum().item<float>(), 8.0F);  // and the thread is as before
}

TEST(Interceptor, TellsThePolicyWhenAnOperatorThrows) {
  Recorder recorder;
  const InterceptorScope scope(recorder);
  EXPECT_ANY_THROW(at::mm(at::ones({2, 3}), at::ones({2, 3})));
  EXPECT_EQ(recorder.ended, recorder.begun);
}

TEST(Interceptor, NestsAndComesBack) {
  Recorder outer, inner;
  const at::Tensor x = at::ones({2, 2});
  {
    const InterceptorScope outer_scope(outer);
    {
      const InterceptorScope inner_scope(inner);
      at::mm(x, x);
    }
    at::stack({x, x});
  }
  at::mm(x, x);
  EXPECT_THAT(inner.begun, ElementsAre("aten::mm"));
  EXPECT_THAT(outer.begun, Not(Contains("aten::mm")));
  EXPECT_THAT(outer.begun, Contains("aten::stack"));
}

TEST(Interceptor, LooksInsideWhereThePolicyWants) {
  struct Inside final : OperatorPolicy {
    std::vector<std::string> seen;
    void before(const c10::OperatorHandle& op, torch::jit::Stack&, std::size_t) override {
      seen.push_back(op.schema().name());
    }
    void after(const c10::OperatorHandle&) noexcept override {}
    bool looks_inside(const c10::OperatorHandle& op) override { return op.schema().name() == "aten::linear"; }
  } inside;
  const at::Tensor x = at::randn({2, 3}), w = at::randn({4, 3});
  at::Tensor seen;
  {
    const InterceptorScope scope(inside);
    seen = at::linear(x, w);
  }
  EXPECT_THAT(inside.seen, Not(Contains("aten::linear")));
  EXPECT_FALSE(inside.seen.empty());
  EXPECT_TRUE(seen.equal(at::linear(x, w)));
}

TEST(Interceptor, FollowsLibTorchsStateToOtherThreads) {
  Recorder recorder;
  const at::Tensor x = at::ones({2, 2});
  {
    const InterceptorScope scope(recorder);
    const at::ThreadLocalState state;
    std::thread([&] {
      at::mm(x, x);  // a bare thread
      const at::ThreadLocalStateGuard guard(state);
      at::add(x, x);
    }).join();
  }
  EXPECT_THAT(recorder.begun, ElementsAre("aten::add"));
}

}  // namespace
}  // namespace capstan

#include "core/memory/forward_rerun.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/model/batch.hpp"

namespace capstan {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

struct Recorder final : OperatorPolicy {
  std::vector<std::string> seen;
  void before(const c10::OperatorHandle& op, OperatorStack&, std::size_t) override {
    seen.push_back(op.schema().name());
  }
  void after(const c10::OperatorHandle&) noexcept override {}
};

thread_local capstan_batch* batch_then = nullptr;

/// x.mm(w), which keeps its inputs alone and computes itself again in backward.
struct RunsAgain : torch::autograd::Function<RunsAgain> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x.mm(w).relu();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor x = saved[0].detach().requires_grad_(), w = saved[1].detach().requires_grad_();
    at::Tensor out;
    {
      const at::AutoGradMode gradients_on(true);
      out = x.mm(w).relu();
      batch_then = batch_of_rerun();
    }
    return torch::autograd::grad({out}, {x, w}, {gradients[0]});
  }
};

class ForwardThatRunsAgain : public ::testing::Test {
 protected:
  at::Tensor x = torch::randn({3, 4}).requires_grad_(), w = torch::randn({4, 5}).requires_grad_();
  ForwardRerun rerun;
  Recorder always, of_forward;
  BackwardPolicies policies{rerun, &always, of_forward};

  std::ptrdiff_t times(const Recorder& recorder, const char* name) const {
    return std::count(recorder.seen.begin(), recorder.seen.end(), name);
  }
};

TEST_F(ForwardThatRunsAgain, IsToldFromTheOperatorsOfBackward) {
  const at::Tensor loss = RunsAgain::apply(x, w).mul(2).sum();
  {
    const InterceptorScope scope(policies);
    rerun.begin_backward();
    loss.backward();
  }
  // The product runs again once; its own backward has two more.
  EXPECT_EQ(times(of_forward, "aten::mm"), 1);
  EXPECT_EQ(times(of_forward, "aten::relu"), 1);
  EXPECT_EQ(times(always, "aten::mm"), 3);
  EXPECT_THAT(of_forward.seen, Not(Contains("aten::threshold_backward")));
  EXPECT_THAT(always.seen, Contains("aten::threshold_backward"));
}

TEST_F(ForwardThatRunsAgain, IsSeenInABackwardThatKeepsItsGraph) {
  const at::Tensor loss = RunsAgain::apply(x, w).sum();
  const InterceptorScope scope(policies);
  rerun.begin_backward();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(times(of_forward, "aten::mm"), 1);
}

TEST_F(ForwardThatRunsAgain, IsNotWhereNothingRunsAgain) {
  const at::Tensor loss = x.mm(w).relu().sum();
  const InterceptorScope scope(policies);
  rerun.begin_backward();
  loss.backward();
  EXPECT_THAT(of_forward.seen, IsEmpty());
}

TEST_F(ForwardThatRunsAgain, IsNotTheBackwardThatAForwardTakesWithAGraphOfItsOwn) {
  const at::Tensor out = x.mm(w).relu().sum();
  const InterceptorScope scope(policies);
  rerun.begin_forward();
  torch::autograd::grad({out}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_THAT(of_forward.seen, IsEmpty());
  EXPECT_THAT(always.seen, Contains("aten::mm"));
}

TEST_F(ForwardThatRunsAgain, HasTheBatchOfItsForward) {
  capstan_batch batch;
  const at::Tensor out = RunsAgain::apply(x, w);
  capstan_batch* in_backward = &batch;
  out.register_hook([&](const at::Tensor&) { in_backward = batch_of_rerun(); });
  rerun.begin_backward();
  {
    const BatchRerunScope scope(rerun, batch);
    EXPECT_EQ(batch_of_rerun(), nullptr);
    out.sum().backward();
  }
  EXPECT_EQ(batch_then, &batch);
  EXPECT_EQ(in_backward, nullptr);
  RunsAgain::apply(x, w).sum().backward();
  EXPECT_EQ(batch_then, nullptr);
}

TEST_F(ForwardThatRunsAgain, MayFollowWhereNoGraphIsRecorded) {
  EXPECT_FALSE(rerun.may_follow());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(rerun.may_follow());
}

}  // namespace
}  // namespace capstan

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "capstan/sdk/aten.hpp"
#include "tests/plugins/models/built_model.hpp"
#include "tests/probes/probe_run.hpp"
#include "tests/support/test_layers.hpp"

namespace capstan {
namespace {

using testing::ProbeRun;
using testing::TestLayers;

std::string token_drop(double keep) {
  return R"("observers": [{"type": "TokenDrop", "params": {"layers": ["blocks.1", "blocks.2"], "keep": )" +
         std::to_string(keep) + "}}]";
}

TEST(TokenDropProbe, KeepingAllTokensChangesNothing) {
  ProbeRun dropping(token_drop(1)), plain;

  EXPECT_EQ(dropping.steps(5), plain.steps(5));
}

/// The same loss by hand: in two layers, a mask says which half of the positions the block computes.
TEST(TokenDropProbe, LetsHalfOfTheTokensPassTwoLayersBy) {
  ProbeRun run(token_drop(0.5));
  torch::manual_seed(5);
  const double loss = run.step();

  TestLayers layers;
  layers.wrap = [](const capstan_layer_call& call, const capstan_inner& inner) {
    const std::string name(sdk::to_view(call.name));
    if (name != "blocks.1" && name != "blocks.2") return TestLayers::run_inner(call, inner, call.hidden);
    const at::Tensor all = sdk::borrow(call.hidden);
    const auto mask = torch::zeros({16}, torch::kBool).index_fill(0, torch::randperm(16).slice(0, 0, 8), true);
    at::Tensor out = all.clone();
    const at::Tensor some = all.index({torch::indexing::Slice(), mask}).contiguous();
    out.index_put_({torch::indexing::Slice(), mask}, sdk::take(TestLayers::run_inner(call, inner, sdk::lend(some))));
    return sdk::give(out);
  };
  Model model = testing::built_model("gpt", Json::parse(R"({"size": "tiny", "layers": 4, "d": 32, "heads": 2,
                                                             "seq": 16, "init": "formula", "init_seed": 1})"));
  Batch batch = run.batch(0);
  batch.layers = &layers;
  torch::manual_seed(5);

  EXPECT_NEAR(loss, model.forward(batch).item<double>(), 1e-6);
}

TEST(TokenDropProbe, DropsOtherTokensInEachStepAndStillLearns) {
  ProbeRun dropping(token_drop(0.5)), plain;

  const auto losses = dropping.steps(30);

  EXPECT_LT(losses.back(), losses.front() - 0.5);
  EXPECT_NE(losses, plain.steps(30));
}

TEST(TokenDropProbe, EvaluatesOnAllTokens) {
  ProbeRun dropping(token_drop(0.5)), plain;
  const auto evaluate = [](ProbeRun& run) { return run.engine->eval_batch([&] { return run.batch(99); }, 1); };

  EXPECT_EQ(evaluate(dropping), evaluate(plain));
}

}  // namespace
}  // namespace capstan

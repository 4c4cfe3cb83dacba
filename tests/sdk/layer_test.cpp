#include "capstan/layer.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "core/engine/initialize.hpp"
#include "tests/support/test_layers.hpp"

namespace capstan {
namespace {

using sdk::borrow;
using sdk::give;
using sdk::take;
using ::testing::ElementsAre;
using testing::TestLayers;
using ::testing::ThrowsMessage;

at::Tensor twice(const at::Tensor& x) { return x * 2; }

/// What the SDK does around a model's forward.
class Layer : public ::testing::Test {
 protected:
  Layer() { batch.layers = &layers; }

  at::Tensor run(std::function<at::Tensor(const at::Tensor&)> f) {
    const sdk::ForwardScope scope(model_host(), &batch, &error);
    return layer("blocks.3", x, f);
  }

  TestLayers layers;
  Batch batch;
  capstan_error error;
  at::Tensor x = torch::tensor({1.0f, 2.0f, 3.0f}, torch::requires_grad());
};

TEST_F(Layer, JustCallsItsFunctionOutsideAnEngine) {
  EXPECT_TRUE(layer("blocks.3", x, twice).equal(x * 2));
  EXPECT_THAT(layers.seen, ElementsAre());
}

TEST_F(Layer, PassesThroughTheHostInsideAForward) {
  EXPECT_TRUE(run(twice).equal(x * 2));
  EXPECT_THAT(layers.seen, ElementsAre("blocks.3"));
  EXPECT_EQ(sdk::ForwardScope::current, nullptr);
}

TEST_F(Layer, KeepsTheGraphThroughAWrapperThatChangesBothSides) {
  layers.wrap = [](const capstan_layer_call& call, const capstan_inner& inner) {
    const at::Tensor input = borrow(call.hidden).slice(0, 1);
    const at::Tensor inner_result = take(TestLayers::run_inner(call, inner, sdk::lend(input)));
    return give(torch::cat({borrow(call.hidden).slice(0, 0, 1), inner_result}));
  };

  const at::Tensor out = run([](const at::Tensor& hidden) { return hidden.square(); });
  out.sum().backward();

  EXPECT_TRUE(out.equal(torch::tensor({1.0f, 4.0f, 9.0f})));
  EXPECT_TRUE(x.grad().equal(torch::tensor({1.0f, 4.0f, 6.0f})));
}

TEST_F(Layer, MayBeLeftOut) {
  layers.wrap = [](const capstan_layer_call& call, const capstan_inner&) { return give(borrow(call.hidden)); };

  EXPECT_TRUE(run([](const at::Tensor&) -> at::Tensor { throw std::logic_error("ran"); }).equal(x));
}

TEST_F(Layer, NestsAndRunsPlainlyInOtherThreads) {
  at::Tensor elsewhere;
  const at::Tensor out = run([&](const at::Tensor& hidden) {
    std::thread([&] { elsewhere = layer("elsewhere", hidden, twice); }).join();
    return layer("blocks.3.mlp", hidden, twice) + elsewhere;
  });

  EXPECT_TRUE(out.equal(x * 4));
  EXPECT_THAT(layers.seen, ElementsAre("blocks.3", "blocks.3.mlp"));
}

struct OutOfCheese {
  int code;
};

TEST_F(Layer, GivesTheOriginalExceptionBack) {
  const auto code = [&] {
    try {
      run([](const at::Tensor&) -> at::Tensor { throw OutOfCheese{42}; });
    } catch (const OutOfCheese& thrown) {
      return thrown.code;
    }
    return 0;
  };

  EXPECT_EQ(code(), 42);
  EXPECT_EQ(sdk::ForwardScope::current, nullptr);
}

TEST_F(Layer, GivesTheExceptionBackEvenFromAWrapperThatHidesIt) {
  layers.wrap = [](const capstan_layer_call& call, const capstan_inner& inner) {
    try {
      return TestLayers::run_inner(call, inner, call.hidden);
    } catch (const PluginError&) {
      return give(borrow(call.hidden));
    }
  };

  EXPECT_THAT([&] { run([](const at::Tensor&) -> at::Tensor { throw std::logic_error("no luck"); }); },
              ThrowsMessage<std::logic_error>("no luck"));
}

TEST_F(Layer, TellsTheWrapperTheShortTextOfALibTorchError) {
  std::string told;
  layers.wrap = [&](const capstan_layer_call& call, const capstan_inner& inner) -> capstan_tensor {
    try {
      return TestLayers::run_inner(call, inner, call.hidden);
    } catch (const PluginError& thrown) {
      told = thrown.what();
      throw;
    }
  };

  EXPECT_THROW(run([](const at::Tensor& hidden) { return hidden.matmul(torch::ones({4, 4})); }), c10::Error);
  EXPECT_EQ(told, "inner: mat1 and mat2 shapes cannot be multiplied (1x3 and 4x4)");
}

TEST_F(Layer, ReportsAWrapperThatFails) {
  layers.wrap = [](const capstan_layer_call&, const capstan_inner&) -> capstan_tensor {
    throw PluginError("observer 'X', layer 'blocks.3': too hot");
  };

  EXPECT_THROW(run(twice), sdk::HostFailure);
  EXPECT_EQ(error.text, "observer 'X', layer 'blocks.3': too hot");
}

TEST_F(Layer, MayRunOnlyOnce) {
  layers.wrap = [](const capstan_layer_call& call, const capstan_inner& inner) {
    take(TestLayers::run_inner(call, inner, call.hidden));
    return TestLayers::run_inner(call, inner, call.hidden);
  };

  EXPECT_THROW(run(twice), sdk::HostFailure);
  EXPECT_EQ(error.text, "inner: layer 'blocks.3' was run twice. Run inner at most once.");
}

TEST_F(Layer, MustComeBackWithATensor) {
  layers.wrap = [](const capstan_layer_call&, const capstan_inner&) -> capstan_tensor { return nullptr; };

  EXPECT_THAT([&] { run(twice); }, ThrowsMessage<sdk::Error>("layer 'blocks.3' came back without a tensor"));
}

}  // namespace
}  // namespace capstan

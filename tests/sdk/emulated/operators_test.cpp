// LibTorch's operators on the emulated device give the CPU's results, for both types that the device can have.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/sdk/emulated/face.hpp"

namespace capstan::test {
namespace {

struct Net : torch::nn::Module {
  Net()
      : in(register_module("in", torch::nn::Linear(8, 32))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})))),
        out(register_module("out", torch::nn::Linear(32, 4))) {}
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::gelu(norm(in(x)))); }
  torch::nn::Linear in;
  torch::nn::LayerNorm norm;
  torch::nn::Linear out;
};

std::vector<double> train(torch::Device on) {
  torch::manual_seed(1);
  Net net;
  const auto x = torch::randn({64, 8}).to(on), y = torch::randint(0, 4, {64}).to(on);
  net.to(on);
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.01));
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(net.forward(x), y);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(EmulatedOperators, TrainAModuleThatMovesThere) {
  const std::vector<double> host = train(torch::kCPU), there = train(device());
  ASSERT_LT(host.back(), 0.7 * host.front());
  for (std::size_t i = 0; i < host.size(); ++i) EXPECT_NEAR(there[i], host[i], 1e-6) << i;
}

using Function = std::function<torch::Tensor(const torch::Tensor&)>;

/// The function's value and its gradient, here and on the device, of the same numbers.
void expect_equal(const char* name, std::vector<std::int64_t> shape, const Function& function) {
  SCOPED_TRACE(name);
  torch::manual_seed(3);
  const auto values = torch::randn(shape);
  const auto run = [&](torch::Device on) {
    const auto x = values.detach().clone().to(on).requires_grad_();
    const auto y = function(x);
    y.square().sum().backward();
    return std::pair(y.detach().cpu(), x.grad().cpu());
  };
  const auto [y, gradient] = run(torch::kCPU);
  const auto [y_there, gradient_there] = run(device());
  EXPECT_TRUE(torch::allclose(y, y_there, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(gradient, gradient_there, 1e-5, 1e-6));
}

TEST(EmulatedOperators, GiveTheResultsAndGradientsOfTheCpu) {
  expect_equal("views", {4, 6}, [](const torch::Tensor& x) {
    return x.t().contiguous().view({2, 12}).narrow(1, 2, 5).unsqueeze(0).expand({3, 2, 5}) * 2;
  });
  expect_equal("in place", {4, 6}, [](const torch::Tensor& x) { return x.clone().mul_(3).add_(x).relu_(); });
  expect_equal("indices", {4, 6}, [](const torch::Tensor& x) {
    const auto rows = torch::tensor({2, 0, 2}, torch::kLong).to(x.device());
    return x.index_select(0, rows).gather(1, torch::zeros({3, 2}, torch::kLong).to(x.device()));
  });
  expect_equal("lists", {4, 6}, [](const torch::Tensor& x) {
    const auto parts = x.split(2);
    return torch::cat({parts[1], parts[0]}, 1) + torch::stack({parts[0], parts[1]}).sum(0).repeat({1, 2});
  });
  expect_equal("softmax", {4, 6}, [](const torch::Tensor& x) { return torch::log_softmax(x, 1); });
  expect_equal("sort", {4, 6}, [](const torch::Tensor& x) { return std::get<0>(x.sort(1)).cumsum(1); });
  expect_equal("attention", {1, 2, 4, 6}, [](const torch::Tensor& x) {
    return torch::scaled_dot_product_attention(x, x * 2, x + 1, {}, 0.0, /*is_causal=*/true);
  });
}

/// A function of a module that has the same parameters on both devices.
template <class Make>
Function of_module(Make make) {
  return [make](const torch::Tensor& x) {
    torch::manual_seed(5);
    auto module = make();
    module->to(x.device());
    return module->forward(x);
  };
}

TEST(EmulatedOperators, ConvolveAsTheCpuDoes) {
  using torch::nn::Conv2d;
  using torch::nn::Conv2dOptions;
  expect_equal("plain", {2, 4, 6, 6}, of_module([] { return Conv2d(Conv2dOptions(4, 3, 3).padding(1).stride(2)); }));
  expect_equal("depthwise", {2, 4, 6, 6}, of_module([] { return Conv2d(Conv2dOptions(4, 8, 3).groups(4)); }));
  expect_equal("grouped", {2, 4, 6, 6}, of_module([] { return Conv2d(Conv2dOptions(4, 6, 3).groups(2).bias(false)); }));
  expect_equal("transposed", {2, 4, 6, 6}, of_module([] {
                 return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(4, 3, 3).stride(2));
               }));
  expect_equal("batch norm", {2, 4, 6, 6}, of_module([] { return torch::nn::BatchNorm2d(4); }));
}

template <class Module, class Options>
Function last_of(const Options& options) {
  return [options](const torch::Tensor& x) {
    torch::manual_seed(5);
    Module module(options);
    module->to(x.device());
    return std::get<0>(module->forward(x));
  };
}

TEST(EmulatedOperators, RunRecurrentCells) {
  for (const bool bias : {true, false}) {
    expect_equal("lstm", {3, 5, 4}, last_of<torch::nn::LSTM>(torch::nn::LSTMOptions(4, 6).bias(bias).num_layers(2)));
    expect_equal("gru", {3, 5, 4}, last_of<torch::nn::GRU>(torch::nn::GRUOptions(4, 6).bias(bias).num_layers(2)));
  }
}

TEST(EmulatedOperators, KeepSparseGradients) {
  const auto gradient = [](torch::Device on) {
    torch::manual_seed(7);
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 3).sparse(true));
    table->to(on);
    const auto ids = torch::tensor({1, 4, 4, 9, 1}, torch::kLong).to(on);
    for (int pass = 0; pass < 2; ++pass) table->forward(ids).sin().sum().backward();
    const auto kept = table->weight.grad();
    EXPECT_TRUE(kept.is_sparse());
    EXPECT_EQ(kept.coalesce().indices().cpu().numel(), 3);
    return kept.to_dense().cpu();
  };
  EXPECT_TRUE(torch::allclose(gradient(torch::kCPU), gradient(device())));
}

TEST(EmulatedOperators, DrawByTheSeedOfTheDevice) {
  const auto drawn = [] {
    torch::manual_seed(11);
    const auto dropped = torch::dropout(torch::ones({100}, device()), 0.5, true);
    return torch::cat({dropped, torch::randn({10}, device())}).cpu();
  };
  const auto first = drawn();
  EXPECT_TRUE(torch::equal(first, drawn()));
  EXPECT_FALSE(torch::equal(first, torch::cat({torch::ones({100}), torch::zeros({10})})));
}

TEST(EmulatedOperators, AutocastToTheTypeThatIsAskedFor) {
  const auto on = device();
  const auto weight = torch::randn({4, 4}).to(on), x = torch::randn({2, 4}).to(on);
  at::autocast::set_autocast_enabled(on.type(), true);
  at::autocast::set_autocast_dtype(on.type(), torch::kBFloat16);
  const auto product = torch::mm(x, weight), loss = torch::softmax(product, 1);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(on.type(), false);
  EXPECT_EQ(product.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
}

TEST(EmulatedOperators, DifferentiateTwice) {
  const auto second = [](torch::Device on) {
    const auto x = torch::tensor({0.5, -1.0, 2.0}).to(on).requires_grad_();
    const auto first = torch::autograd::grad({x.pow(3).sum()}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.sum()}, {x})[0].cpu();
  };
  EXPECT_TRUE(torch::allclose(second(device()), torch::tensor({3.0, -6.0, 12.0})));
}

TEST(EmulatedOperators, RefuseMoreThanTheDeviceHas) {
  EXPECT_THROW(torch::empty({std::int64_t{64} << 30}, torch::TensorOptions(torch::kByte).device(device())), c10::Error);
  EXPECT_EQ(torch::ones({4}, device()).sum().item<float>(), 4);
}

}  // namespace
}  // namespace capstan::test

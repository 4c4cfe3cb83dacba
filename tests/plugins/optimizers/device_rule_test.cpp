// The rules that GPUs apply, held against the CPU's kernels: the same bits.

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cstring>

#include "plugins/optimizers/adam/adam_rule.hpp"
#include "plugins/optimizers/sgd/sgd_rule.hpp"
#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::testing {
namespace {

/// Without the instruction the CPU's kernels round twice where they say MulAdd.
bool cpu_fuses() {
#ifdef __x86_64__
  return __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

constexpr std::int64_t kNumel = 5003;  // whole vectors and a tail
constexpr int kUpdates = 30;
constexpr double kScale = 0.7;

/// Updates all elements of copies of `param`, as a GPU's threads do.
template <std::size_t kStates, class RuleAt>
std::vector<float> swept(const at::Tensor& param, const std::vector<at::Tensor>& gradients, RuleAt rule_at) {
  std::vector<float> values(param.const_data_ptr<float>(), param.const_data_ptr<float>() + param.numel());
  std::vector<float> states(values.size() * (kStates + 1));
  for (std::size_t update = 0; update < gradients.size(); ++update) {
    const auto rule = rule_at(static_cast<double>(update + 1));
    const float* gradient = gradients[update].const_data_ptr<float>();
    for (std::size_t i = 0; i < values.size(); ++i) rule(values[i], gradient[i], &states[i * (kStates + 1)]);
  }
  return values;
}

/// The same by the plugin for the CPU.
std::vector<float> by_plugin(const char* plugin, const char* type, const char* params, const at::Tensor& param,
                             const std::vector<at::Tensor>& gradients) {
  OptimizerUnderTest optimizer(plugin, type, Json::parse(params));
  optimizer.add(param.clone());
  for (const at::Tensor& gradient : gradients) {
    optimizer.slot(0).grad = gradient;
    optimizer.update(kScale);
  }
  const at::Tensor& out = optimizer.slot(0).param;
  return {out.const_data_ptr<float>(), out.const_data_ptr<float>() + out.numel()};
}

std::vector<at::Tensor> some_gradients() {
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < kUpdates; ++i) gradients.push_back(at::randn({kNumel}));
  return gradients;
}

void expect_same_bits(const std::vector<float>& device, const std::vector<float>& host) {
  ASSERT_EQ(device.size(), host.size());
  EXPECT_EQ(std::memcmp(device.data(), host.data(), device.size() * sizeof(float)), 0);
}

optimizers::AdamNumbers adam_at(double step, double l2, double decay) {
  return {.moments = optimizers::Moments(kScale, l2, 0.9, 0.99),
          .lr = 0.01f,
          .eps = 1e-8f,
          .decay = static_cast<float>(decay),
          .inverse_c1 = static_cast<float>(1 / (1 - std::pow(0.9, step))),
          .inverse_sqrt_c2 = static_cast<float>(1 / std::sqrt(1 - std::pow(0.99, step)))};
}

TEST(DeviceRule, AdamGivesTheBitsOfTheCpu) {
  if (!cpu_fuses()) GTEST_SKIP() << "this CPU has no fused multiply-add";
  const at::Tensor param = at::randn({kNumel});
  const auto gradients = some_gradients();
  expect_same_bits(
      swept<2>(param, gradients, [](double step) { return optimizers::AdamRule<false>{adam_at(step, 0, 0.1)}; }),
      by_plugin("adam", "AdamW", R"({"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1})", param, gradients));
  expect_same_bits(
      swept<3>(param, gradients, [](double step) { return optimizers::AdamRule<true>{adam_at(step, 0.1, 0)}; }),
      by_plugin("adam", "Adam",
                R"({"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1, "adam_w_mode": false, "torch_adam": true,
                    "amsgrad": true})",
                param, gradients));
}

TEST(DeviceRule, SgdGivesTheBitsOfTheCpu) {
  if (!cpu_fuses()) GTEST_SKIP() << "this CPU has no fused multiply-add";
  const at::Tensor param = at::randn({kNumel});
  const auto gradients = some_gradients();
  expect_same_bits(swept<0>(param, gradients,
                            [](double) { return optimizers::SgdRule{{.grad_scale = 0.7f, .l2 = 0.1f, .lr = 0.01f}}; }),
                   by_plugin("sgd", "SGD", R"({"lr": 0.01, "weight_decay": 0.1})", param, gradients));
  expect_same_bits(swept<1>(param, gradients,
                            [](double step) {
                              return optimizers::SgdMomentumRule{{.grad_scale = 0.7f,
                                                                  .l2 = 0.1f,
                                                                  .lr = 0.01f,
                                                                  .keep = step == 1 ? 0.0f : 0.9f,
                                                                  .take = 1.0f,
                                                                  .from_buffer = 0.9f,
                                                                  .from_gradient = 1.0f}};
                            }),
                   by_plugin("sgd", "SGD", R"({"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "nesterov": true})",
                             param, gradients));
}

}  // namespace
}  // namespace capstan::testing

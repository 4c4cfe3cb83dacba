// The optimizers that are rules of elements: the kernels of their files for a device, run on the emulated one, against
// the vectors of their files for the CPU.

#include <gtest/gtest.h>

#include "tests/plugins/optimizers/optimizer_under_test.hpp"
#include "tests/sdk/emulated/face.hpp"
#include "tests/sdk/launch_orders.hpp"

namespace capstan::testing {
namespace {

/// Without the instruction the CPU rounds twice where a rule says mul_add.
bool cpu_fuses() {
#ifdef __x86_64__
  return __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

struct Setting {
  const char *name, *plugin, *type, *params;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class ElementOptimizer : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr int kUpdates = 8;

  /// Slots of several sizes: one element, parts of a vector, more than a chunk of the device's kernel.
  static void fill(OptimizerUnderTest& optimizer, at::ScalarType type, at::Device device, at::ScalarType states) {
    std::uint64_t seed = 3;
    for (const std::int64_t numel : {1, 31, 1000, 20'003}) {
      TestSlot& slot = optimizer.add(noise(numel, ++seed).to(device), 0, states);
      if (type != at::kFloat) slot.compute = at::empty({numel}, at::TensorOptions(type).device(device));
    }
  }

  static void update(OptimizerUnderTest& optimizer, int number, at::ScalarType type, at::Device device) {
    for (std::size_t i = 0; i < optimizer.size(); ++i) {
      TestSlot& slot = optimizer.slot(i);
      const auto seed = static_cast<std::uint64_t>(100 * number) + i;
      at::Tensor gradient = noise(slot.param.numel(), seed);
      // Zeros, and gradients that the decay may cancel.
      if (slot.param.numel() > 20) gradient.narrow(0, 5, 9).zero_();
      slot.grad = gradient.to(type).to(device);
    }
    optimizer.update(0.7);
  }

  static void expect_equal(const at::Tensor& device, const at::Tensor& host, const std::string& what) {
    if (!host.defined()) return;
    EXPECT_TRUE(device.cpu().equal(host)) << what;
  }

  static void expect_the_cpus_bits(at::ScalarType type, at::ScalarType states) {
    const Setting& setting = GetParam();
    const Json params = Json::parse(setting.params);
    const std::string file = std::string(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/emulated/libcapstan_optimizer_") +
                             setting.plugin + "_cuda_on_cpu.so";
    OptimizerUnderTest host(setting.plugin, setting.type, params);
    OptimizerUnderTest device(file, setting.type, params, {}, test::device());
    fill(host, type, at::kCPU, states);
    fill(device, type, test::device(), states);
    for (int number = 0; number < kUpdates; ++number) {
      update(host, number, type, at::kCPU);
      update(device, number, type, test::device());
    }
    for (std::size_t i = 0; i < host.size(); ++i) {
      const std::string what = std::string(at::toString(type)) + ", slot " + std::to_string(i);
      expect_equal(device.slot(i).param, host.slot(i).param, what + ", parameter");
      expect_equal(device.slot(i).compute, host.slot(i).compute, what + ", compute copy");
      EXPECT_EQ(device.slot(i).compute_written, host.slot(i).compute_written) << what;
      for (std::size_t s = 0; s < host.slot(i).state.size(); ++s) {
        expect_equal(device.slot(i).state[s], host.slot(i).state[s], what + ", state " + std::to_string(s));
      }
    }
  }
};

TEST_P(ElementOptimizer, HasTheCpusBitsOnADevice) {
  if (!cpu_fuses()) GTEST_SKIP() << "this CPU has no fused multiply-add";
  in_each_launch_order([] {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) expect_the_cpus_bits(type, at::kFloat);
    expect_the_cpus_bits(at::kBFloat16, at::kBFloat16);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Settings, ElementOptimizer,
    ::testing::Values(
        Setting{"AdamW", "adam", "AdamW", R"({"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1})"},
        Setting{"Amsgrad", "adam", "Adam",
                R"({"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": false, "torch_adam": true, "amsgrad": true})"},
        Setting{"SGD", "sgd", "SGD", R"({"lr": 0.01, "weight_decay": 0.1})"},
        Setting{"Nesterov", "sgd", "SGD", R"({"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "nesterov": true})"},
        Setting{"Lion", "lion", "Lion", R"({"lr": 0.01, "weight_decay": 0.1})"},
        Setting{"Lamb", "lamb", "Lamb", R"({"lr": 0.01, "weight_decay": 0.1, "min_coeff": 0.001})"},
        Setting{"LambRoot", "lamb", "Lamb", R"({"lr": 0.01, "eps_inside_sqrt": true, "bias_correction": false})"},
        Setting{"Adagrad", "adagrad", "Adagrad",
                R"({"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5})"},
        Setting{"Adadelta", "adadelta", "Adadelta", R"({"lr": 0.5, "weight_decay": 0.1})"},
        Setting{"Adamax", "adamax", "Adamax", R"({"lr": 0.01, "weight_decay": 0.1})"},
        Setting{"ASGD", "asgd", "ASGD", R"({"lr": 0.01, "t0": 3, "weight_decay": 0.1})"},
        Setting{"Rprop", "rprop", "Rprop", R"({"lr": 0.01})"},
        Setting{"RMSprop", "rmsprop", "RMSprop", R"({"lr": 0.01, "weight_decay": 0.1})"},
        Setting{"RMSpropMomentum", "rmsprop", "RMSprop", R"({"lr": 0.01, "momentum": 0.9})"},
        Setting{"RMSpropCentered", "rmsprop", "RMSprop", R"({"lr": 0.01, "centered": true})"},
        Setting{"RMSpropBoth", "rmsprop", "RMSprop", R"({"lr": 0.01, "centered": true, "momentum": 0.9})"},
        Setting{"NAdam", "nadam", "NAdam", R"({"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": true})"},
        // Eight updates pass the one from which the variance is tractable.
        Setting{"RAdam", "radam", "RAdam", R"({"lr": 0.01, "betas": [0.9, 0.99], "weight_decay": 0.1})"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::testing

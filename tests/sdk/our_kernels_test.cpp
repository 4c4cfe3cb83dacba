// The CUDA kernels of our optimizers, run on the CPU in each order of threads: the bits of the rules and of the CPU's
// loops.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#define CAPSTAN_RULES_FOR_DEVICE
#include "capstan/sdk/elements.hpp"
#include "examples/plugins/signum/signum_kernel.hpp"
#include "plugins/optimizers/onebit/cuda_kernels.hpp"
#include "plugins/optimizers/onebit/fixed_order.hpp"
#include "plugins/optimizers/onebit/step_rules.hpp"
#include "tests/plugins/optimizers/kernel_agreement.hpp"
#include "tests/sdk/device_array.hpp"
#include "tests/sdk/launch_orders.hpp"

CAPSTAN_RULES
CAPSTAN_RULE_KERNEL(AdaptiveRule)
CAPSTAN_RULES_END

namespace capstan::testing {
namespace {

using namespace optimizers;

/// A slot and its tensors, of one type each.
struct SweptSlot {
  DeviceArray param, grad, copy;
  std::vector<DeviceArray> states;

  SweptSlot(DeviceType type, std::size_t count, std::size_t state_count, std::mt19937& random)
      : param(random_array(DeviceType::kFloat32, count, random)),
        grad(random_array(type, count, random)),
        copy(type, count) {
    // Second moments are positive.
    for (std::size_t s = 0; s < state_count; ++s) states.push_back(random_array(type, count, random, 0));
  }
  DeviceBlock block() {
    const auto values = [](DeviceArray& array) {
      return DeviceValues{array.data(), static_cast<ElementType>(array.type())};
    };
    // Every slot of 16-bit numbers has a copy that the model computes with.
    const bool copied = copy.type() != DeviceType::kFloat32;
    DeviceBlock block{static_cast<float*>(param.data()), values(grad), copied ? values(copy) : DeviceValues{}, {}, 0};
    for (std::size_t s = 0; s < states.size(); ++s) block.state[s] = values(states[s]);
    block.count = param.count();
    return block;
  }
  template <class Rule>
  void apply(const Rule& rule) {
    for (std::size_t i = 0; i < param.count(); ++i) {
      float value = param[i], state[kMaxStates] = {};
      for (std::size_t s = 0; s < states.size(); ++s) state[s] = states[s][i];
      rule(value, grad[i], state);
      param.set(i, value);
      for (std::size_t s = 0; s < states.size(); ++s) states[s].set(i, state[s]);
      if (copy.type() != DeviceType::kFloat32) copy.set(i, value);
    }
  }
  bool operator==(const SweptSlot&) const = default;
};

/// Counts around a warp, a block of threads and the chunk of a block; more slots than one launch takes.
constexpr std::size_t kCounts[] = {1,   31,  0,   32,  33,     255,    256,    257,    1023, 1024, 1025, 16383,
                                   100, 101, 102, 103, 16'384, 16'385, 40'001, 32'768, 5,    6,    7,    8};

/// Launches three updates of slots that differ in their numbers, and holds them against the rule, an element at a time.
template <class Rule, class NumbersAt, class Launch>
void expect_rule(std::size_t state_count, const NumbersAt& numbers_at, const Launch& launch) {
  in_each_launch_order([&] {
    for (const DeviceType type : kDeviceTypes) {
      std::mt19937 random(11);
      std::vector<SweptSlot> slots;
      for (const std::size_t count : kCounts) slots.emplace_back(type, count, state_count, random);
      std::vector<SweptSlot> expected = slots;
      std::vector<DeviceUpdate<Rule>> updates;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        updates.push_back({slots[i].block(), Rule{numbers_at(0.01f * static_cast<float>(i + 1))}});
      }
      for (int update = 0; update < 3; ++update) {
        ASSERT_EQ(launch(updates), nullptr);
        for (std::size_t i = 0; i < slots.size(); ++i) expected[i].apply(updates[i].rule);
      }
      for (std::size_t i = 0; i < slots.size(); ++i) {
        EXPECT_TRUE(slots[i] == expected[i]) << kCounts[i] << " elements of type " << static_cast<int>(type);
      }
    }
  });
}

TEST(OurKernels, TheWarmUpOfOneBitOptimizersAppliesItsRule) {
  expect_rule<AdaptiveRule>(
      2,
      [](float lr) {
        return AdaptiveNumbers{.moments = Moments(0.7, 0, 0.9, 0.99), .rates = {lr, 1e-6f, 0.1f}};
      },
      [](const auto& updates) {
        return launch_AdaptiveRule({updates, nullptr});
      });
}

/// As examples/plugins/signum says: m = b*m + (1-b)*g;  w -= lr * (sign(m) + decay*w).
TEST(OurKernels, SignumAppliesItsFormula) {
  const signum::Numbers n{0.01f, 0.9f, 0.1f, 0.7f};
  in_each_launch_order([&] {
    for (const DeviceType type : kDeviceTypes) {
      for (const std::size_t count : {0u, 1u, 255u, 256u, 257u, 10'001u}) {
        std::mt19937 random(5);
        DeviceArray weights = random_array(DeviceType::kFloat32, count, random);
        DeviceArray means = random_array(DeviceType::kFloat32, count, random);
        DeviceArray grads = random_array(type, count, random);
        DeviceArray expected_weights = weights, expected_means = means;
        for (std::size_t i = 0; i < count; ++i) {
          const float grad = grads[i] * n.grad_scale;
          const float mean = n.momentum * means[i] + (1.0f - n.momentum) * grad;
          const float sign = mean > 0 ? 1.0f : mean < 0 ? -1.0f : 0.0f;
          expected_means.set(i, mean);
          expected_weights.set(i, weights[i] - n.lr * (sign + n.weight_decay * weights[i]));
        }
        const char* fault = signum::launch(static_cast<float*>(weights.data()), static_cast<float*>(means.data()),
                                           grads.data(), static_cast<signum::GradientType>(type), count, n, nullptr);
        EXPECT_EQ(fault, nullptr);
        EXPECT_TRUE(weights == expected_weights && means == expected_means) << count;
      }
    }
  });
}

class OurOneBitKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_fuses()) GTEST_SKIP() << "this CPU has no fused multiply-add";
  }
  void expect(void (*agreement)(Kernels&, c10::Device)) {
    in_each_launch_order([&] { agreement(*kernels_, at::kCPU); });
  }

  const std::unique_ptr<Kernels> kernels_ = cuda_kernels([] { return nullptr; });
};

TEST_F(OurOneBitKernels, StepsGiveTheBitsOfTheCpu) { expect(expect_steps_of_the_cpu); }
TEST_F(OurOneBitKernels, MeasuringStepsGiveTheBitsOfTheCpu) { expect(expect_measures_of_the_cpu); }
TEST_F(OurOneBitKernels, MoveMemoryAsTheCpuDoes) { expect(expect_memory_of_the_cpu); }
TEST_F(OurOneBitKernels, CompressionGivesTheBitsOfTheCpu) { expect(expect_compression_of_the_cpu); }

/// More elements than a launch has threads: a thread takes several.
TEST_F(OurOneBitKernels, CopyManyElements) {
  std::vector<float> from(8193 * kSumThreads + 5);
  std::mt19937 random(2);
  for (float& value : from) value = static_cast<float>(random() % 1000);
  in_each_launch_order([&] {
    std::vector<float> to(from.size());
    kernels_->copy(from.data(), from.size(), to.data());
    EXPECT_TRUE(to == from);
  });
}

/// More units than a launch has blocks: a block makes several sums in the same shared memory.
TEST_F(OurOneBitKernels, SumsOfManyUnitsAreThoseOfTheCpu) {
  constexpr std::size_t kCount = 8195 * kSumUnit;
  std::vector<float> values(kCount);
  double expected = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] = static_cast<float>(i * 2654435761u % 4096);
    expected += static_cast<double>(values[i]) * static_cast<double>(values[i]);  // an integer: exact in any order
  }
  in_each_launch_order([&] {
    double squares = 0;
    kernels_->measure(values.data(), kCount, &squares);
    EXPECT_EQ(squares, expected);
  });
}

}  // namespace
}  // namespace capstan::testing

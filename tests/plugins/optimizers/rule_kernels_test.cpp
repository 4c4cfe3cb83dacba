// The rules that GPUs apply for the 1-bit optimizers, in host memory: the bits of the CPU's loops, and sums in the
// order that is promised.
#include <gtest/gtest.h>

#include "tests/plugins/optimizers/kernel_agreement.hpp"
#include "tests/plugins/optimizers/optimizer_under_test.hpp"
#include "tests/plugins/optimizers/rule_launch.hpp"

namespace capstan::testing {
namespace {

class RuleKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_fuses()) GTEST_SKIP() << "this CPU has no fused multiply-add";
  }
  RuleKernelsOnHost kernels_;
};

TEST_F(RuleKernels, StepsGiveTheBitsOfTheCpu) { expect_steps_of_the_cpu(kernels_, at::kCPU); }
TEST_F(RuleKernels, MeasuringStepsGiveTheBitsOfTheCpu) { expect_measures_of_the_cpu(kernels_, at::kCPU); }
TEST_F(RuleKernels, MovesMemoryAsTheCpuDoes) { expect_memory_of_the_cpu(kernels_, at::kCPU); }
TEST_F(RuleKernels, CompressionGivesTheBitsOfTheCpu) { expect_compression_of_the_cpu(kernels_, at::kCPU); }

/// The sum as fixed_order.hpp describes it, from its words alone.
double in_described_order(const std::vector<double>& values) {
  const auto of_unit = [](const std::vector<double>& all, std::size_t begin, std::size_t end) {
    std::vector<double> threads(256, 0.0);
    for (std::size_t i = begin; i < end; ++i) threads[(i - begin) % 256] += all[i];
    for (std::size_t width = 128; width >= 1; width /= 2) {
      for (std::size_t t = 0; t < width; ++t) threads[t] += threads[t + width];
    }
    return threads[0];
  };
  std::vector<double> units;
  for (std::size_t begin = 0; begin < values.size(); begin += 2048) {
    units.push_back(of_unit(values, begin, std::min(begin + 2048, values.size())));
  }
  return of_unit(units, 0, units.size());
}

TEST_F(RuleKernels, AddsUpInTheDescribedOrder) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{300}, std::size_t{50'003}, std::size_t{1'000'003}}) {
    const at::Tensor floats = noise(static_cast<std::int64_t>(count), 11);
    std::vector<double> values;
    double one_by_one = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double value = static_cast<double>(floats.const_data_ptr<float>()[i]);
      values.push_back(value * value);
      one_by_one += values.back();
    }
    double squares = 0;
    kernels_.measure(floats.const_data_ptr<float>(), count, &squares);
    EXPECT_EQ(squares, in_described_order(values)) << count;
    if (count > 10'000) {
      EXPECT_NE(squares, one_by_one) << "of " << count << ": the order would not show";
    }
  }
}

}  // namespace
}  // namespace capstan::testing

#include "capstan/sdk/elements/convert.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>

#include "tests/plugins/optimizers/optimizer_under_test.hpp"

namespace capstan::elements {
namespace {

using Case = std::tuple<sdk::Dtype, std::int64_t>;

/// Every instruction set of this machine, against LibTorch's conversions.
class Conversion : public ::testing::TestWithParam<Case> {
 protected:
  Conversion() { choose(std::get<1>(GetParam())); }
  ~Conversion() override { choose(0); }

  sdk::Dtype dtype() const { return std::get<0>(GetParam()); }
  at::ScalarType torch_dtype() const { return dtype() == sdk::Dtype::kBFloat16 ? at::kBFloat16 : at::kHalf; }

 private:
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::isnan(actual).equal(at::isnan(expected)));
  EXPECT_TRUE(actual.nan_to_num(0).equal(expected.nan_to_num(0)));
}

TEST_P(Conversion, WidensAllPatternsExactly) {
  at::Tensor patterns = at::empty({65536 + 5}, torch_dtype());
  auto* bits = static_cast<std::uint16_t*>(patterns.data_ptr());
  for (int i = 0; i < 65536 + 5; ++i) bits[i] = static_cast<std::uint16_t>(i);
  at::Tensor wide = at::empty({65536 + 5}, at::kFloat);
  widen(patterns.data_ptr(), dtype(), wide.data_ptr<float>(), 65536 + 5);
  expect_same(wide, patterns.to(at::kFloat));
}

TEST_P(Conversion, RoundsToNearestEvenAllTheWayFromSubnormalToInfinite) {
  constexpr int kCount = (1 << 20) + 3;
  at::Tensor values = at::empty({kCount}, at::kFloat);
  auto* bits = static_cast<std::uint32_t*>(values.data_ptr());
  // Steps of a prime through all bit patterns, and the halfway points of both formats.
  for (std::uint32_t i = 0; i < kCount; ++i) bits[i] = i * 4093u;
  for (std::uint32_t i = 0; i < 65536; ++i) bits[i] = i << 16 | 0x8000u;
  for (std::uint32_t i = 0; i < 65536; ++i) bits[65536 + i] = (i << 13) * 8u | 0x1000u;
  at::Tensor narrowed = at::empty({kCount}, torch_dtype());
  narrow(values.data_ptr<float>(), narrowed.data_ptr(), dtype(), kCount);
  expect_same(narrowed.to(at::kFloat), values.to(torch_dtype()).to(at::kFloat));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    for (const auto dtype : {sdk::Dtype::kBFloat16, sdk::Dtype::kFloat16}) all.emplace_back(dtype, rest & -rest);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Targets, Conversion, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(hwy::TargetName(std::get<1>(info.param))) +
         (std::get<0>(info.param) == sdk::Dtype::kBFloat16 ? "BFloat16" : "Float16");
});

}  // namespace
}  // namespace capstan::elements

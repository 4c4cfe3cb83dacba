// Quantising in the update (MoQ), one process: what becomes of weights, and of keys that cannot be.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/round.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/errors.hpp"
#include "tests/plugins/compression/quantized.hpp"

namespace capstan::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Moq {
  int start = 8, target = 8;
  std::int64_t period = 1;
  std::string type = "symmetric", rounding = "nearest", mixed = "";  // the ratio
  int groups = 1, offset = 0;
};

std::string section(const Moq& moq) {
  const auto text = [](auto number) { return std::to_string(number); };
  return R"({"shared_parameters": {"enabled": true, "quantize_weight_in_forward": false, "schedule_offset": )" +
         text(moq.offset) + R"(, "quantize_groups": )" + text(moq.groups) + R"(, "quantization_type": ")" + moq.type +
         R"(", "rounding": ")" + moq.rounding + R"(", "fp16_mixed_quantize": {"enabled": )" +
         (moq.mixed.empty() ? "false" : R"(true, "quantize_change_ratio": )" + moq.mixed) + R"(}},
    "different_groups": {"g1": {"params": {"start_bits": )" +
         text(moq.start) + R"(, "target_bits": )" + text(moq.target) + R"(, "quantization_period": )" +
         text(moq.period) + R"(}, "modules": ["fc"]}}})";
}

Layer layer_of(const at::Tensor& weight) { return {"fc", "torch.nn.Linear", weight.sizes().vec()}; }

at::Tensor after(const Moq& moq, const at::Tensor& weight, std::int64_t updates) {
  const Layer layer = layer_of(weight);
  Compressions made = planned(section(moq), "weight_quantization", {layer});
  return compressed(made, layer, weight, updates);
}

/// What the reference makes of a weight in float16, in float32.
at::Tensor reference(const at::Tensor& weight, int bits, bool symmetric, int groups) {
  const at::Tensor x = weight.to(at::kHalf).to(at::kFloat).view({groups, -1});
  at::Tensor y;
  if (bits == 1) {
    y = x.sign() * x.abs().mean(1, true);
  } else if (bits == 2) {
    const at::Tensor above = x.abs().gt(0.7 * x.abs().mean(1, true));
    const at::Tensor magnitude = (x.abs() * above).sum(1, true) / above.sum(1, true);
    y = x.sign() * magnitude * above;
  } else if (symmetric) {
    const double half = std::ldexp(1.0, bits - 1);
    const at::Tensor scale = x.abs().amax({1}, true) / half;
    y = (x / scale).round().clamp(-half, half - 1) * scale;
  } else {
    const double levels = std::ldexp(1.0, bits);
    const at::Tensor low = x.amin({1}, true), scale = (x.amax({1}, true) - low) / levels;
    const at::Tensor origin = (low / scale).round() * scale;
    y = ((x - origin) / scale).round().clamp(0, levels - 1) * scale + origin;
  }
  return y.view(weight.sizes());
}

class UpdateQuantization : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(5); }
  at::Tensor weight_ = at::randn({48, 64}).mul_(0.04);
};

TEST_F(UpdateQuantization, MakesOfFloat16WeightsWhatTheReferenceMakes) {
  const at::Tensor weight = at::randn({48, 64}).mul_(0.04);
  for (const int groups : {1, 4, 48}) {
    for (const int bits : {1, 2, 3, 4, 8, 12, 16}) {
      for (const bool symmetric : {true, false}) {
        if (bits <= 2 && !symmetric) continue;
        Moq moq{.start = bits, .target = bits, .type = symmetric ? "symmetric" : "asymmetric", .groups = groups};
        const at::Tensor wanted = reference(weight, bits, symmetric, groups), made = after(moq, weight, 3);
        // A value on the edge of two levels may fall to either by the last bit of a quotient.
        const at::Tensor differs = (made - wanted).abs().gt(1e-6 * 0.2);
        EXPECT_LE(differs.sum().item<std::int64_t>(), 2)
            << bits << (symmetric ? " symmetric " : " asymmetric ") << groups;
      }
    }
  }
}

TEST_F(UpdateQuantization, HasThePublishedValuesOfFiveNumbers) {
  const at::Tensor x = at::tensor({-1.0f, -0.3f, 0.0f, 0.2f, 0.75f}).view({1, 5});
  const auto expect = [&](const Moq& moq, const std::vector<float>& golden) {
    const at::Tensor made = after(moq, x, 0);
    for (std::size_t i = 0; i < golden.size(); ++i) {
      EXPECT_NEAR(made.const_data_ptr<float>()[i], golden[i], 2e-4) << moq.start << moq.type << i;
    }
  };
  expect({.start = 8, .target = 8}, {-1, -.296875f, 0, .203125f, .75f});
  expect({.start = 4, .target = 4}, {-1, -.25f, 0, .25f, .75f});
  expect({.start = 8, .target = 8, .type = "asymmetric"}, {-.998046875f, -.30078125f, 0, .1982421875f, .7451171875f});
  expect({.start = 4, .target = 4, .type = "asymmetric"}, {-.984375f, -.328125f, 0, .21875f, .65625f});
  expect({.start = 2, .target = 2}, {-.875f, 0, 0, 0, .875f});
  expect({.start = 1, .target = 1}, {-.45f, -.45f, 0, .45f, .45f});
}

TEST_F(UpdateQuantization, HasFewerBitsFromPeriodToPeriodAfterTheOffset) {
  for (const int offset : {0, 5}) {
    const Moq moq{.start = 8, .target = 3, .period = 10, .offset = offset};
    for (const std::int64_t n : {0, 1, 9, 10, 11, 20, 29, 30, 49, 50, 1000}) {
      const at::Tensor made = after(moq, weight_, offset + n);
      const int bits = std::max(3, 8 - static_cast<int>(n / 10));
      // With an offset the first update that is rounded comes after it.
      const bool rounded = offset == 0 || n > 0;
      const at::Tensor wanted = rounded ? reference(weight_, bits, true, 1) : weight_;
      EXPECT_LE((made - wanted).abs().gt(2e-7).sum().item<std::int64_t>(), 2) << offset << ", " << n;
    }
  }
}

TEST_F(UpdateQuantization, MixesInWhatItWas) {
  const Moq moq{.start = 4, .target = 4, .mixed = "0.1"};
  const at::Tensor x = weight_.to(at::kHalf).to(at::kFloat), quantised = reference(weight_, 4, true, 1);
  for (const std::int64_t n : {0, 3, 9, 10, 11}) {
    const double share = std::max(0.0, 1 - 0.1 * static_cast<double>(n));
    const at::Tensor wanted = share * x + (1 - share) * quantised;
    EXPECT_LE((after(moq, weight_, n) - wanted).abs().gt(2e-7).sum().item<std::int64_t>(), 2) << n;
  }
}

TEST_F(UpdateQuantization, RoundsToEitherNeighbourByChanceThatIsRightOnAverage) {
  const Moq moq{.start = 4, .target = 4, .rounding = "stochastic"};
  const Layer layer = layer_of(weight_);
  Compressions made = planned(section(moq), "weight_quantization", {layer});
  const at::Tensor x = weight_.to(at::kHalf).to(at::kFloat);
  const double scale = (x.abs().max() / 8).item<double>();
  constexpr int kUpdates = 400;
  at::Tensor sum = at::zeros(weight_.sizes());
  at::Tensor last;
  for (int n = 0; n < kUpdates; ++n) {
    const at::Tensor now = compressed(made, layer, weight_, n);
    EXPECT_LE((now - x).abs().max().item<double>(), 1.0001 * scale);
    EXPECT_FALSE(n > 0 && now.equal(last)) << n;
    sum += last = now;
  }
  EXPECT_TRUE(compressed(made, layer, weight_, kUpdates - 1).equal(last));
  // The largest level above 0 is one below the largest magnitude.
  const at::Tensor inside = x.abs().lt(6 * scale);
  const at::Tensor off = ((sum / kUpdates - x) * inside).abs();
  // A mean of 400 such draws has a deviation of scale / 2 / 20 at most; of 3,072 of them none is 5 off.
  EXPECT_LE(off.max().item<double>(), 5 * scale / 40);
  EXPECT_LE(std::abs(((sum / kUpdates - x) * inside).mean().item<double>()), 5 * scale / 40 / std::sqrt(3072.0));
}

TEST_F(UpdateQuantization, LeavesZerosAndConstantGroupsAsTheyAre) {
  for (const char* type : {"symmetric", "asymmetric"}) {
    const Moq moq{.start = 4, .target = 4, .type = type};
    EXPECT_TRUE(after(moq, at::zeros({4, 8}), 0).equal(at::zeros({4, 8}))) << type;
  }
  const at::Tensor half = at::full({4, 8}, 0.5f);
  EXPECT_TRUE(after({.start = 4, .target = 4, .type = "asymmetric"}, half, 0).equal(half));
}

TEST_F(UpdateQuantization, GivesTheCodesOfTheBitsThatItHas) {
  for (const char* rounding : {"nearest", "stochastic"}) {
    for (const char* type : {"symmetric", "asymmetric"}) {
      const Moq moq{.start = 10, .target = 4, .period = 5, .type = type, .rounding = rounding, .groups = 4};
      const Layer layer = layer_of(weight_);
      Compressions made = planned(section(moq), "weight_quantization", {layer});
      for (const std::int64_t n : {0, 10, 14, 30, 99}) {
        const CompressionPlan::Parameter* coder = made.coder("fc.weight", n);
        const int bits = std::max(4, 10 - static_cast<int>(n / 5));
        ASSERT_EQ(coder != nullptr, bits <= 8) << n;
        if (coder == nullptr) continue;
        EXPECT_EQ(coder->bits, bits);
        const WeightCodes codes = made.encode("fc.weight", layer.shape, weight_.reshape({-1}), n);
        EXPECT_EQ(codes.bits, bits);
        EXPECT_TRUE(decoded(codes).equal(compressed(made, layer, weight_, n).reshape({-1}))) << rounding << type << n;
      }
    }
  }
}

TEST_F(UpdateQuantization, HasNoCodesWhileValuesAreMixed) {
  const Layer layer = layer_of(weight_);
  Compressions made = planned(section({.start = 4, .target = 4, .mixed = "0.25"}), "weight_quantization", {layer});
  EXPECT_EQ(made.coder("fc.weight", 3), nullptr);
  ASSERT_NE(made.coder("fc.weight", 4), nullptr);
}

TEST_F(UpdateQuantization, TakesABitEveryUpdateWhereThePeriodIs0) {
  const Moq moq{.start = 8, .target = 4, .period = 0};
  const std::vector<int> bits = {8, 7, 6, 5, 4, 4};
  for (std::size_t updates = 0; updates < bits.size(); ++updates) {
    const at::Tensor made = after(moq, weight_, static_cast<std::int64_t>(updates));
    const at::Tensor wanted = reference(weight_, bits[updates], true, 1);
    EXPECT_LE((made - wanted).abs().gt(2e-7).sum().item<std::int64_t>(), 2) << updates;
  }
  EXPECT_THAT(planned(section(moq), "weight_quantization", {layer_of(weight_)}).report().front(),
              HasSubstr("8 to 4 bits in the update, one fewer every update"));
}

struct Refused {
  Moq moq;
  const char* text;
};

TEST_F(UpdateQuantization, RefusesWhatCannotBe) {
  for (const Refused& one :
       {Refused{{.start = 4, .target = 8}, "g1.params.start_bits: 4 is below target_bits, 8."},
        Refused{{.start = 8, .target = 4, .period = -1}, "g1.params.quantization_period: must be at least 0, got -1."},
        Refused{{.start = 40, .target = 4}, "g1.params.start_bits: must be at most 32, got 40."},
        Refused{{.start = 8, .target = 0}, "g1.params.target_bits: must be 1 to 32, got 0."},
        Refused{{.start = 8, .target = 2, .rounding = "stochastic"},
                "g1.params.target_bits: 2 bits need quantization_type \"symmetric\" and rounding \"nearest\"."},
        Refused{{.start = 8, .target = 4, .mixed = "0"},
                "fp16_mixed_quantize.quantize_change_ratio: must be above 0: nothing would ever be quantised."},
        Refused{{.start = 8, .target = 4, .groups = 5},
                "quantize_groups: 5 does not divide the weight of 'fc', which has 3072 elements; 4 and 6 do."}}) {
    EXPECT_THAT([&] { after(one.moq, weight_, 0); }, ThrowsMessage<ConfigError>(HasSubstr(one.text)));
  }
}

}  // namespace
}  // namespace capstan::testing

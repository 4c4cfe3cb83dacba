#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/round.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/host.hpp"
#include "tests/plugins/compression/quantized.hpp"
#include "tests/support/ranks.hpp"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Settings {
  int bits = 8;
  const char* type = "symmetric";
  const char* calibration = "dynamic";
  int offset = 0;
};

std::string section(const Settings& settings) {
  return R"({"shared_parameters": {"enabled": true, "schedule_offset": )" + std::to_string(settings.offset) +
         R"(, "quantization_type": ")" + settings.type + R"(", "range_calibration": ")" + settings.calibration +
         R"("}, "different_groups": {"aq1": {"params": {"bits": )" + std::to_string(settings.bits) +
         R"(}, "modules": ["fc", "conv"]}}})";
}

const std::vector<Layer> kLayers = {{"fc", "torch.nn.Linear", {2, 5}}, {"conv", "torch.nn.Conv2d", {4, 3, 3, 3}}};

Compressions quantizer(const Settings& settings, const capstan_host* host = nullptr) {
  return planned(section(settings), "activation_quantization", kLayers, {}, host);
}

at::Tensor quantised(const Compressions& compressions, const at::Tensor& input, const char* module = "fc",
                     bool training = true) {
  at::Tensor out = at::full(input.sizes(), -77, input.options());
  EXPECT_TRUE(compressions.operand(module, input, 0, training, out));
  return out;
}

/// The formulas of the reference with a range for each row, by LibTorch's own operators.
at::Tensor expected(const at::Tensor& x, const at::Tensor& low, const at::Tensor& high, const Settings& settings) {
  const double levels = std::ldexp(1.0, settings.bits);
  if (*settings.type == 's') {
    const at::Tensor scale = at::maximum(low.abs(), high) * 2 / levels;
    return at::round(x / scale).clamp(-levels / 2, levels / 2 - 1) * scale;
  }
  const at::Tensor scale = (high - low) / levels, first = at::round(low / scale);
  return (at::round((x - first * scale) / scale).clamp(0, levels - 1) + first) * scale;
}

at::Tensor expected_by_rows(const at::Tensor& rows, const Settings& settings) {
  return expected(rows, rows.amin({1}, true), rows.amax({1}, true), settings);
}

class Formulas : public ::testing::TestWithParam<Settings> {};

TEST_P(Formulas, QuantiseEachTokenByItsOwnRange) {
  const at::Tensor x = at::randn({3, 4, 5}) * 3;
  EXPECT_TRUE(
      at::equal(quantised(quantizer(GetParam()), x).view({12, 5}), expected_by_rows(x.view({12, 5}), GetParam())));
}

TEST_P(Formulas, QuantiseEachImageByItsOwnRange) {
  const at::Tensor x = at::randn({2, 3, 120, 120});  // larger than what one thread takes
  const Compressions compressions = quantizer(GetParam());
  EXPECT_TRUE(
      at::equal(quantised(compressions, x, "conv").view({2, -1}), expected_by_rows(x.view({2, -1}), GetParam())));
  const at::Tensor image = x[1].contiguous();  // without a batch
  EXPECT_TRUE(at::equal(quantised(compressions, image, "conv").view({1, -1}),
                        expected_by_rows(image.view({1, -1}), GetParam())));
}

TEST_P(Formulas, QuantiseWithTheRunningRangeOfTheBatches) {
  Settings settings = GetParam();
  settings.calibration = "static";
  Compressions compressions = quantizer(settings);
  at::Tensor low = at::zeros({}), high = at::zeros({});
  for (int batch = 0; batch < 4; ++batch) {
    const at::Tensor x = at::randn({100, 400}) * (batch + 1);
    if (batch == 0) low = x.amin(), high = x.amax();
    low = low * 0.95F + x.amin() * 0.05F;
    high = high * 0.95F + x.amax() * 0.05F;
    EXPECT_TRUE(at::equal(quantised(compressions, x), expected(x, low, high, settings))) << batch;
    if (batch % 2 == 1) compressions.settle(batch);  // the same, whatever makes a step
  }
  const at::Tensor wide = at::randn({10, 40}) * 100;  // evaluation takes the range as it stands
  for (int times = 0; times < 2; ++times) {
    EXPECT_TRUE(at::equal(quantised(compressions, wide, "fc", false), expected(wide, low, high, settings)));
  }
}

TEST_P(Formulas, RoundNumbersOfSixteenBitsOnce) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor x = (at::randn({64, 33}) * 2).to(dtype);
    x[0] *= 1e-7;  // subnormal halves
    EXPECT_TRUE(
        at::equal(quantised(quantizer(GetParam()), x), expected_by_rows(x.to(at::kFloat), GetParam()).to(dtype)))
        << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(ActivationQuantization, Formulas,
                         ::testing::Values(Settings{8, "symmetric"}, Settings{4, "symmetric"},
                                           Settings{8, "asymmetric"}, Settings{4, "asymmetric"}),
                         [](const auto& info) { return info.param.type + std::to_string(info.param.bits); });

TEST(ActivationQuantization, GivesTheGoldenValues) {
  const at::Tensor x = at::tensor({-1.0F, -.3F, 0.0F, .2F, .75F});
  const auto is = [&](int bits, const char* type, std::vector<float> values) {
    EXPECT_TRUE(at::equal(quantised(quantizer({bits, type}), x), at::tensor(values))) << type << bits;
  };
  is(8, "symmetric", {-1, -.296875, 0, .203125, .75});
  is(4, "symmetric", {-1, -.25, 0, .25, .75});
  is(8, "asymmetric", {-.998046875, -.30078125, 0, .1982421875, .7451171875});
  is(4, "asymmetric", {-.984375, -.328125, 0, .21875, .65625});
}

TEST(ActivationQuantization, LeavesWhatHasNoRangeAsItIs) {
  for (const char* type : {"symmetric", "asymmetric"}) {
    const at::Tensor constant = at::full({2, 5}, 0.7), zero = at::zeros({2, 5});
    EXPECT_TRUE(at::equal(quantised(quantizer({8, type}), zero), zero));
    EXPECT_TRUE(at::equal(quantised(quantizer({8, "asymmetric"}), constant), constant));
    // Evaluation before any training has no range to quantise with.
    const at::Tensor x = at::randn({2, 5});
    EXPECT_TRUE(at::equal(quantised(quantizer({8, type, "static"}), x, "fc", false), x));
  }
}

TEST(ActivationQuantization, BeginsWithItsSchedule) {
  const at::Tensor x = at::randn({2, 5});
  for (const int offset : {0, 1, 7}) {
    const Compressions compressions = quantizer({8, "symmetric", "dynamic", offset});
    at::Tensor out = at::empty_like(x);
    for (const int updates : {0, 1, 6, 7}) {
      EXPECT_EQ(compressions.operand("fc", x, updates, true, out), updates >= offset) << updates;
    }
  }
}

std::string saved(const Compressions& compressions) { return compressions.save().dump(); }

TEST(ActivationQuantization, KeepsBatchesThatAreNotFiniteOutOfTheRange) {
  Compressions compressions = quantizer({8, "symmetric", "static"});
  quantised(compressions, at::randn({2, 5}));
  compressions.settle(0);
  const std::string before = saved(compressions);
  quantised(compressions, at::full({2, 5}, std::numeric_limits<float>::infinity()));
  quantised(compressions, at::full({2, 5}, std::numeric_limits<float>::quiet_NaN()));
  compressions.settle(0);
  EXPECT_EQ(saved(compressions), before);
}

TEST(ActivationQuantization, ForgetsAStepThatWasGivenUpAndGoesOnWithWhatItSaved) {
  const Settings settings{8, "asymmetric", "static"};
  const at::Tensor first = at::randn({2, 5}), lost = at::randn({2, 5}) * 50, next = at::randn({2, 5});
  Compressions undisturbed = quantizer(settings), disturbed = quantizer(settings), resumed = quantizer(settings);
  for (Compressions* one : {&undisturbed, &disturbed}) {
    quantised(*one, first);
    one->settle(0);
  }
  disturbed.begin_micro_batch();
  quantised(disturbed, lost);
  disturbed.abandon_step();
  resumed.load(undisturbed.save());
  for (Compressions* one : {&undisturbed, &disturbed, &resumed}) {
    const at::Tensor trained = quantised(*one, next);
    EXPECT_TRUE(at::equal(quantised(*one, next, "fc", false), trained));
    one->settle(1);
  }
  EXPECT_EQ(saved(disturbed), saved(undisturbed));
  EXPECT_EQ(saved(resumed), saved(undisturbed));
}

TEST(ActivationQuantization, ForgetsAMicroBatchThatWasNotKept) {
  const Settings settings{8, "asymmetric", "static"};
  const float infinite = std::numeric_limits<float>::infinity();
  Compressions undisturbed = quantizer(settings), disturbed = quantizer(settings);
  const std::vector<at::Tensor> batches = {at::randn({2, 5}), at::full({2, 5}, infinite), at::randn({2, 5}) * 7};
  for (Compressions* one : {&undisturbed, &disturbed}) {
    for (const at::Tensor& batch : batches) {
      if (one == &disturbed) {
        one->begin_micro_batch();
        quantised(*one, at::randn({2, 5}) * 50);
      }
      one->begin_micro_batch();
      quantised(*one, batch);
      one->keep_micro_batch();
    }
    // One that begins after the last, and is not used.
    one->begin_micro_batch();
    if (one == &disturbed) quantised(*one, at::randn({2, 5}) * 50);
    EXPECT_EQ(saved(*one), saved(quantizer(settings)));  // what a checkpoint holds in the midst of a step
    one->settle(0);
  }
  EXPECT_EQ(saved(disturbed), saved(undisturbed));
}

TEST(ActivationQuantization, RefusesASavedRangeThatIsNone) {
  Compressions compressions = quantizer({8, "symmetric", "static"});
  Json states = compressions.save();
  states["activation_quantization"] = R"({"ranges": {"fc": [1]}})";
  EXPECT_THAT([&] { compressions.load(states); },
              ThrowsMessage<PluginError>(
                  HasSubstr("the saved range of 'fc' must be two numbers, and two for each use in a step.")));
}

TEST(ActivationQuantization, RefusesOtherNumbersThanFloats) {
  const Compressions compressions = quantizer({});
  const at::Tensor x = at::randint(0, 9, {2, 5}, at::kLong);
  EXPECT_THAT(
      [&] { quantised(compressions, x); },
      ThrowsMessage<PluginError>(HasSubstr("module 'fc': quantises float32, bfloat16 and float16 activations in "
                                           "host memory; this input is int64.")));
}

TEST(ActivationQuantization, RefusesOtherBits) {
  EXPECT_THAT([] { quantizer({6}); },
              ThrowsMessage<ConfigError>(HasSubstr("compression_training.activation_quantization.different_groups.aq1."
                                                   "params.bits: must be 4 or 8, got 6.")));
}

TEST(ActivationQuantization, SaysWhatEachGroupActsOn) {
  EXPECT_THAT(quantizer({}).report(), ElementsAre("activation_quantization aq1: 2 of 2 modules, 8 bits, 118 weights"));
}

/// A host whose all-gather is the communicator's.
capstan_host host_of(Communicator& communicator) {
  capstan_host host = make_host();
  host.ctx = &communicator;
  host.rank = static_cast<std::uint32_t>(communicator.rank());
  host.world_size = static_cast<std::uint32_t>(communicator.size());
  host.all_gather = [](void* ctx, capstan_tensor out, capstan_tensor in, capstan_error*) {
    auto& ranks = *static_cast<Communicator*>(ctx);
    std::vector<at::Tensor> parts = tensor_of(out).chunk(ranks.size());
    parts[static_cast<std::size_t>(ranks.rank())].copy_(tensor_of(in));
    ranks.all_gather("test: ranges", parts);
    return CAPSTAN_OK;
  };
  return host;
}

/// Each rank has batches of its own, one of them one more, and one that is not finite.
TEST(ActivationQuantization, GivesAllRanksTheRangeOfAllTheirBatches) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    const capstan_host host = host_of(communicator);
    const Settings settings{8, "symmetric", "static"};
    Compressions compressions = quantizer(settings, &host), alone = quantizer(settings);
    const float infinite = std::numeric_limits<float>::infinity();
    const float mine = communicator.rank() == 0 ? -3 : 5;
    quantised(compressions, at::tensor({mine, 1.0F}));                                     // -3 to 5
    quantised(compressions, at::tensor({communicator.rank() == 0 ? infinite : 2, 1.0F}));  // 1 to 2
    if (communicator.rank() == 1) quantised(compressions, at::tensor({-9.0F, 9.0F}));
    compressions.settle(0);
    for (const std::pair<float, float>& both : {std::pair(-3.0F, 5.0F), {1.0F, 2.0F}, {-9.0F, 9.0F}}) {
      quantised(alone, at::tensor({both.first, both.second}));
    }
    alone.settle(0);
    EXPECT_EQ(saved(compressions), saved(alone));
  });
}

}  // namespace
}  // namespace capstan::testing

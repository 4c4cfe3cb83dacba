#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"
#include "core/text/json.hpp"
#include "plugins/observers/random_ltd/drawn_positions.hpp"
#include "plugins/observers/random_ltd/kept_length.hpp"
#include "plugins/observers/random_ltd/kept_tokens.hpp"
#include "plugins/observers/random_ltd/wrapped_layers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::random_ltd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

KeptLength schedule(const Json& config) {
  static const capstan_host host = make_host();
  const std::string text = config.dump();
  capstan_error error;
  return {sdk::Params(&host, as_str(text), &error), "/random_ltd_schedule"};
}

KeptLength linear(std::int64_t minimum, std::int64_t maximum, std::int64_t steps, std::int64_t multiple) {
  Json config = Json::object();
  Json& to = config["random_ltd_schedule"];
  to["min_value"] = minimum;
  to["max_value"] = maximum;
  to["schedule_config"]["require_steps"] = steps;
  to["schedule_config"]["seq_per_step"] = multiple;
  return schedule(config);
}

TEST(KeptLength, HasTheGoldenValues) {
  KeptLength whole = linear(128, 2048, 200'000, 16);
  Numbers found;
  for (const std::int64_t step : {0, 1666, 1667, 3334, 100'000, 199'999, 200'000}) found.push_back(whole.update(step));
  EXPECT_THAT(found, ElementsAre(128, 128, 144, 160, 1088, 2032, 2048));

  KeptLength small = linear(16, 64, 10, 8);
  found.clear();
  for (std::int64_t step = 0; step <= 11; ++step) found.push_back(small.update(step));
  EXPECT_THAT(found, ElementsAre(16, 16, 24, 24, 32, 40, 40, 48, 48, 56, 64, 64));

  // Never below the minimum, which is no multiple here.
  EXPECT_EQ(linear(100, 512, 50, 16).update(0), 100);
}

TEST(KeptLength, AndTheTokensItMakesOfItAreThePeersWhereTheMinimumIsAMultiple) {
  const Json recorded =
      Json::parse(read_bytes(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/observers/random_ltd_schedules.json"));
  std::int64_t compared = 0;
  for (const Json& one : recorded.at("cases").as_array()) {
    const Json &config = one.at("config"), &given = config.at("random_ltd_schedule");
    const std::int64_t minimum = given.at("min_value").as_integer(), maximum = given.at("max_value").as_integer();
    const bool is_multiple = minimum % given.at("schedule_config").at("seq_per_step").as_integer() == 0;
    const std::int64_t layers = config.at("total_layer_num").as_integer(),
                       dropping = config.at("random_ltd_layer_num").as_integer();
    KeptLength made = schedule(config);
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> wanted;
    if (const Json* lengths = one.find("reserved_length")) {
      for (std::size_t i = 0; i < lengths->size(); ++i) {
        wanted[static_cast<std::int64_t>(i)] = {lengths->as_array()[i].as_integer(),
                                                one.at("consumed_layer_tokens").as_array()[i].as_integer()};
      }
    } else {
      for (const Json& row : one.at("changes").as_array()) {
        wanted[row.as_array()[0].as_integer()] = {row.as_array()[1].as_integer(), row.as_array()[2].as_integer()};
      }
    }
    std::int64_t consumed = 0;
    for (std::int64_t step = 0; step <= wanted.rbegin()->first; ++step) {
      const std::int64_t kept = made.update(step);
      consumed += config.at("global_batch_size").as_integer() * (kept * dropping + maximum * (layers - dropping));
      if (!wanted.contains(step)) continue;
      ASSERT_EQ(kept, std::max(wanted[step].first, minimum)) << one.at("name").as_string() << " " << step;
      ASSERT_EQ(is_multiple ? consumed : wanted[step].second, wanted[step].second) << one.at("name").as_string();
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

TokenChoice choice(Numbers samples, std::int64_t tokens, std::int64_t keep, std::int64_t step = 5,
                   std::uint32_t layer = 1) {
  return {step, 0, torch::tensor(samples), layer, tokens, keep};
}

TEST(DrawnPositions, AscendAndAreAFunctionOfSeedStepSampleAndLayer) {
  const at::Tensor drawn = draw_positions(7, choice({3, 100, 4}, 40, 17));
  ASSERT_EQ(drawn.sizes(), (Numbers{3, 17}));
  EXPECT_TRUE((drawn.slice(1, 1) > drawn.slice(1, 0, -1)).all().item<bool>());
  EXPECT_GE(drawn.min().item<std::int64_t>(), 0);
  EXPECT_LT(drawn.max().item<std::int64_t>(), 40);

  // Other samples beside one do not matter, nor does the micro-step.
  EXPECT_TRUE(draw_positions(7, choice({100}, 40, 17))[0].equal(drawn[1]));
  TokenChoice later = choice({100}, 40, 17);
  later.micro_step = 3;
  EXPECT_TRUE(draw_positions(7, later)[0].equal(drawn[1]));

  EXPECT_FALSE(draw_positions(8, choice({100}, 40, 17))[0].equal(drawn[1]));
  EXPECT_FALSE(draw_positions(7, choice({100}, 40, 17, 6))[0].equal(drawn[1]));
  EXPECT_FALSE(draw_positions(7, choice({100}, 40, 17, 5, 2))[0].equal(drawn[1]));
  EXPECT_FALSE(drawn[0].equal(drawn[1]));
}

TEST(DrawnPositions, HaveEachPositionAndEachPairEquallyOften) {
  constexpr std::int64_t kSamples = 20'000, kTokens = 12, kKeep = 5;
  Numbers samples(kSamples);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<std::int64_t>(i);
  const at::Tensor drawn = draw_positions(1, choice(samples, kTokens, kKeep));
  const at::Tensor kept = torch::zeros({kSamples, kTokens}, at::kDouble).scatter(1, drawn, 1.0);
  const at::Tensor together = kept.t().mm(kept);
  const auto within = [](double count, double share) {
    return std::abs(count - share * kSamples) <= 4.5 * std::sqrt(share * (1 - share) * kSamples);
  };
  const double one = static_cast<double>(kKeep) / kTokens, two = one * (kKeep - 1) / (kTokens - 1);
  for (std::int64_t i = 0; i < kTokens; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      EXPECT_TRUE(within(together[i][j].item<double>(), i == j ? one : two)) << i << " " << j;
    }
  }
}

TEST(WrappedLayers, AreThoseThatHaveAnIdAsAWholeComponent) {
  const WrappedLayers found({"h.10.mlp", "h.1.mlp", "h.2.mlp", "h.21.mlp"}, {2, 1});
  EXPECT_EQ(found.count(), 2);
  EXPECT_EQ(found.place(0), std::nullopt);
  EXPECT_EQ(found.place(1), 0u);
  EXPECT_EQ(found.place(2), 1u);
  EXPECT_EQ(found.place(3), std::nullopt);
  EXPECT_EQ(found.place(4), std::nullopt);  // one that the model does not list
  EXPECT_EQ(found.listed(), "'h.1.mlp', 'h.2.mlp'");
}

TEST(WrappedLayers, RefuseAnIdThatNoLayerHas) {
  EXPECT_THAT(
      [] {
        WrappedLayers({"h.0", "h.10"}, {1});
      },
      ThrowsMessage<sdk::Error>("[configuration] data_efficiency.data_routing.random_ltd.random_ltd_layer_id: the "
                                "model has no layer 1: it has 2 layers, "
                                "'h.0' to 'h.10'."));
  EXPECT_THAT(
      [] {
        WrappedLayers({"h.0", "h.1", "h.2"}, {1, 1});
      },
      ThrowsMessage<sdk::Error>(
          HasSubstr("random_ltd_layer_id: the model has no layer 1 behind 'h.1': it has 3 layers, 'h.0' to 'h.2'.")));
}

/// What a layer does in these tests, and what comes before and behind it.
using Layer = std::function<at::Tensor(const at::Tensor&)>;

class KeptTokensTest : public ::testing::TestWithParam<Order> {
 protected:
  KeptTokensTest() { torch::manual_seed(1); }

  at::Tensor random_hidden() const {
    return torch::randn(GetParam() == Order::kBatchSeq ? Numbers{2, 5, 3} : Numbers{5, 2, 3}).requires_grad_();
  }

  /// By plain operators on tensors of all tokens.
  at::Tensor expected(const at::Tensor& hidden, const Layer& layer) const {
    const int dim = GetParam() == Order::kBatchSeq ? 1 : 0;
    const at::Tensor places = dim == 1 ? positions_ : positions_.t();
    const at::Tensor index = places.unsqueeze(2).expand({places.size(0), places.size(1), 3});
    return hidden.scatter(dim, index, layer(hidden.gather(dim, index)));
  }
  at::Tensor found(const at::Tensor& hidden, const Layer& layer) const {
    const KeptTokens tokens(hidden, positions_, GetParam());
    return tokens.scatter(layer(tokens.gathered()));
  }

  void expect_equal_gradients(const Layer& before, const Layer& layer, const Layer& behind) {
    const at::Tensor one = random_hidden(), other = one.detach().clone().requires_grad_();
    const at::Tensor out = found(before(one), layer), wanted = expected(before(other), layer);
    EXPECT_TRUE(out.equal(wanted));
    behind(out).backward();
    behind(wanted).backward();
    EXPECT_TRUE(one.grad().allclose(other.grad(), 1e-6, 1e-6)) << one.grad() << other.grad();
  }

  const at::Tensor positions_ = torch::tensor(Numbers{0, 3, 1, 4}).view({2, 2});
};

const Layer kSame = [](const at::Tensor& x) { return x; };
const Layer kWeighted = [](const at::Tensor& x) {
  return (x * torch::arange(x.numel(), at::kFloat).view(x.sizes()).sin()).sum();
};

TEST_P(KeptTokensTest, HaveTheGradientsOfPlainOperators) {
  const Layer squared = [](const at::Tensor& x) { return x * x + 1; };
  expect_equal_gradients(kSame, squared, kWeighted);
  expect_equal_gradients([](const at::Tensor& x) { return x.sin(); }, squared, kWeighted);
  // A gradient without memory of its own: all elements are one.
  expect_equal_gradients(kSame, squared, [](const at::Tensor& x) { return x.sum(); });
  // The hidden states go elsewhere too.
  const Layer twice = [](const at::Tensor& x) { return x.exp(); };
  expect_equal_gradients(
      twice, [](const at::Tensor& x) { return x.sin() * x.cos(); },
      [](const at::Tensor& x) { return (x * x).sum() + kWeighted(x); });
}

TEST_P(KeptTokensTest, HaveTheGradientsOfALayerThatIgnoresWhatItIsGiven) {
  const at::Tensor weight = torch::randn({3}).requires_grad_();
  expect_equal_gradients(
      kSame, [&](const at::Tensor& x) { return torch::ones_like(x) * weight; }, kWeighted);
  expect_equal_gradients(
      kSame, [](const at::Tensor& x) { return torch::ones_like(x); }, kWeighted);
}

TEST_P(KeptTokensTest, LeaveAGradientAloneThatOthersHold) {
  // Made first, so that its backward comes last and finds the gradient that the sum gives to both.
  const at::Tensor origin = torch::zeros(random_hidden().sizes()).requires_grad_(), beside = origin * 1;
  const at::Tensor hidden = random_hidden(), factor = torch::randn(hidden.sizes());
  ((found(hidden, [](const at::Tensor& x) { return x * 5; }) + beside) * factor).sum().backward();
  EXPECT_TRUE(origin.grad().equal(factor));
  EXPECT_FALSE(hidden.grad().equal(factor));
}

TEST_P(KeptTokensTest, TrainTheLayerWhereTheHiddenStatesNeedNoGradient) {
  const at::Tensor hidden = random_hidden().detach(), weight = torch::ones({3}).requires_grad_();
  found(hidden, [&](const at::Tensor& x) { return x * weight; }).sum().backward();
  const at::Tensor whole = weight.grad().clone();
  weight.mutable_grad().zero_();
  expected(hidden, [&](const at::Tensor& x) { return x * weight; }).sum().backward();
  EXPECT_TRUE(whole.allclose(weight.grad()));
}

TEST_P(KeptTokensTest, HaveSecondDerivatives) {
  const at::Tensor one = random_hidden(), other = one.detach().clone().requires_grad_();
  const auto second = [](const at::Tensor& out, const at::Tensor& hidden) {
    const at::Tensor first = torch::autograd::grad({(out * out * out).sum()}, {hidden}, {}, true, true)[0];
    return torch::autograd::grad({(first * first).sum()}, {hidden})[0];
  };
  const Layer layer = [](const at::Tensor& x) { return x.sin(); };
  EXPECT_TRUE(second(found(one, layer), one).allclose(second(expected(other, layer), other), 1e-5, 1e-5));
}

TEST_P(KeptTokensTest, RefuseALayerThatGivesAnotherShape) {
  EXPECT_THAT(
      [&] { found(random_hidden(), [](const at::Tensor& x) { return x.narrow(2, 0, 1); }); },
      ThrowsMessage<sdk::Error>(HasSubstr(": random-LTD puts what a layer gives in the place of what it was given.")));
}

INSTANTIATE_TEST_SUITE_P(Orders, KeptTokensTest, ::testing::Values(Order::kBatchSeq, Order::kSeqBatch),
                         [](const auto& info) { return info.param == Order::kBatchSeq ? "BatchSeq" : "SeqBatch"; });

TEST(Masks, OfADecoderLoseTheirLastRowsAndColumns) {
  const at::Tensor mask = torch::arange(2 * 16).view({2, 1, 4, 4});
  EXPECT_TRUE(corner(mask, 4, 3).equal(mask.slice(2, 0, 3).slice(3, 0, 3)));
  EXPECT_TRUE(corner(torch::arange(4).view({1, 1, 1, 4}), 4, 3).equal(torch::arange(3).view({1, 1, 1, 3})));
}

TEST(Masks, OfAnEncoderKeepTheRowsAndColumnsOfEachSample) {
  const at::Tensor mask = torch::arange(2 * 16).view({2, 1, 4, 4}),
                   positions = torch::tensor(Numbers{0, 2, 1, 3}).view({2, 2});
  EXPECT_TRUE(rows_and_columns(mask, positions, 4)
                  .equal(torch::tensor(Numbers{0, 2, 8, 10, 21, 23, 29, 31}).view({2, 1, 2, 2})));
  // One for all samples, and one for all rows.
  EXPECT_TRUE(rows_and_columns(torch::arange(4).view({1, 1, 1, 4}), positions, 4)
                  .equal(torch::tensor(Numbers{0, 2, 1, 3}).view({2, 1, 1, 2})));
}

TEST(Masks, AreRefusedWhereTheyDoNotFitTheTokens) {
  EXPECT_THAT(
      [] {
        corner(torch::zeros({1, 1, 5, 5}), 4, 3);
      },
      ThrowsMessage<sdk::Error>("[configuration] data_efficiency.data_routing.random_ltd.model_mask_name: the mask is "
                                "[1, 1, 5, 5]; its last two dimensions must be the 4 "
                                "tokens, or 1."));
  const at::Tensor positions = torch::zeros({2, 2}, at::kLong);
  EXPECT_THAT(
      [&] {
        rows_and_columns(torch::zeros({2, 4}), positions, 4);
      },
      ThrowsMessage<sdk::Error>("[configuration] data_efficiency.data_routing.random_ltd.model_mask_name: the mask is "
                                "[2, 4]; its last two dimensions must be the 4 tokens, "
                                "or 1, and its first the samples, or 1."));
  EXPECT_THAT(
      [&] {
        rows_and_columns(torch::zeros({3, 1, 4, 4}), positions, 4);
      },
      ThrowsMessage<sdk::Error>("[configuration] data_efficiency.data_routing.random_ltd.model_mask_name: the mask is "
                                "[3, 1, 4, 4]; its first dimension must be the 2 "
                                "samples, or 1."));
}

}  // namespace
}  // namespace capstan::random_ltd

// What a run sees of the three optimizers: errors, notices, parts, masks, checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/plugins/optimizers/onebit_ranks.hpp"

namespace capstan::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

struct Type {
  const char *plugin, *type;
};
constexpr Type kAdam = {"onebit_adam", "OneBitAdam"}, kLamb = {"onebit_lamb", "OneBitLamb"},
               kZeroOne = {"zero_one_adam", "ZeroOneAdam"};

std::string refusal(const Type& type, const char* params) {
  try {
    OptimizerUnderTest(type.plugin, type.type, Json::parse(params));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class EachType : public ::testing::TestWithParam<Type> {
 protected:
  const Type& type() const { return GetParam(); }
  /// Freezes after 3 updates; ranks exchange at every update from then on.
  std::string params() const {
    return type().type == std::string("ZeroOneAdam")
               ? R"({"var_freeze_step": 2, "weight_decay": 0.01, "local_step_scaler": 4, "local_step_clipper": 4})"
               : R"({"freeze_step": 3, "weight_decay": 0.01})";
  }
};

TEST_P(EachType, RefusesWhatItDoesNotHave) {
  const std::string name = type().type;
  EXPECT_EQ(refusal(type(), R"({"amsgrad": true})"),
            "amsgrad: " + name + " has no AMSGrad form; remove it or set it to false.");
  EXPECT_EQ(refusal(type(), R"({"eps_inside_sqrt": true})"),
            "eps_inside_sqrt: " + name + " adds eps outside of the square root; remove it or set it to false.");
}

TEST_P(EachType, RemarksOnWhatHasNoEffectWhereItIsGiven) {
  const std::string name = type().type;
  const auto log = [&](const char* params) {
    OptimizerUnderTest optimizer(type().plugin, type().type, Json::parse(params));
    std::vector<std::string> lines = optimizer.component.log();
    std::erase_if(lines, [](const std::string& line) { return line.starts_with("warning"); });
    return lines;
  };
  EXPECT_THAT(log("{}"), IsEmpty());
  EXPECT_THAT(log(R"({"bias_correction": false, "cuda_aware": false})"), IsEmpty());
  EXPECT_THAT(log(R"({"bias_correction": true})"), ElementsAre("info: bias_correction: true has no effect; " + name +
                                                               " as published does not correct its moments."));
  EXPECT_THAT(log(R"({"cuda_aware": true})"),
              ElementsAre("info: cuda_aware: true has no effect; it is about MPI, and the engine's process group "
                          "carries the exchange."));
}

TEST_P(EachType, SaysOnceThatGlooStandsInForNccl) {
  Meeting meeting(2);
  meeting.run([&](Seat seat) {
    for (const char* backend : {"nccl", "gloo", "cpu", "compressed"}) {
      Json given = Json::object();
      given["comm_backend_name"] = backend;
      OptimizerUnderTest optimizer(type().plugin, type().type, given, seat);
      std::vector<std::string> lines = optimizer.component.log();
      std::erase_if(lines, [](const std::string& line) { return line.starts_with("warning"); });
      if (seat.rank == 0 && backend == std::string("nccl")) {
        EXPECT_THAT(lines, ElementsAre("info: comm_backend_name 'nccl': this run is on CPUs, so gloo carries the "
                                       "exchange of " +
                                       std::string(type().type) + "."));
      } else {
        EXPECT_THAT(lines, IsEmpty());
      }
    }
  });
}

TEST_P(EachType, AsksForOwnGradientsFromTheFreezeOnUnlessAlone) {
  const Problem two = noisy_problem(2, {20}, 1), one = noisy_problem(1, {20}, 1);
  std::vector<bool> modes;
  Meeting meeting(2);
  meeting.run([&](Seat seat) {
    RankOfProblem rank(two, type().plugin, type().type, Json::parse(params()), seat);
    for (int t = 1; t <= 6; ++t) {
      if (seat.rank == 0) modes.push_back(rank.optimizer.wants_local_gradients());
      rank.update(t);
    }
  });
  EXPECT_THAT(modes, ElementsAre(false, false, false, true, true, true));
  run_ranks(one, type().plugin, type().type, params(), 6,
            [](RankOfProblem& rank, std::uint32_t, int) { EXPECT_FALSE(rank.optimizer.wants_local_gradients()); });
}

TEST_P(EachType, KeepsOneSettingForAllGroups) {
  OptimizerUnderTest optimizer(type().plugin, type().type, Json::parse(params()));
  const std::string key = type().type == std::string("ZeroOneAdam") ? "var_freeze_step" : "freeze_step";
  Json changed = Json::object();
  changed[key] = 99;
  optimizer.add_group(changed);
  optimizer.add(tensor_of({1, 2}));
  EXPECT_THAT([&] { optimizer.update(); },
              ThrowsMessage<std::runtime_error>("[configuration] optimizer.params." + key +
                                                ": is one for all parameter groups; group 1 has another one. Set "
                                                "it in optimizer.params alone."));
}

TEST_P(EachType, GoesOnBitByBitFromACheckpoint) {
  const Problem problem = noisy_problem(3, {37, 5, 64}, 4);
  for (const int at : {2, 3, 5, 9}) {
    Meeting meeting(3);
    meeting.run([&](Seat seat) {
      RankOfProblem straight(problem, type().plugin, type().type, Json::parse(params()), seat);
      RankOfProblem resumed(problem, type().plugin, type().type, Json::parse(params()), seat);
      for (int t = 1; t <= at; ++t) straight.update(t);
      if (type().type == std::string("ZeroOneAdam")) straight.optimizer.synchronize();
      resumed.optimizer.resume_from(straight.optimizer);
      for (int t = at + 1; t <= at + 12; ++t) {
        straight.update(t);
        resumed.update(t);
        EXPECT_EQ(straight.bits(), resumed.bits())
            << "saved after " << at << ", rank " << seat.rank << ", update " << t;
      }
      EXPECT_THAT(resumed.optimizer.component.log(), Not(Contains(HasSubstr("restart at zero"))));
    });
  }
}

TEST_P(EachType, RestartsErrorsThatBelongToOtherBuffersAndSaysSo) {
  const Problem problem = noisy_problem(2, {40, 24}, 4), other = noisy_problem(2, {40, 24}, 4);
  Meeting meeting(2);
  meeting.run([&](Seat seat) {
    RankOfProblem before(problem, type().plugin, type().type, Json::parse(params()), seat);
    for (int t = 1; t <= 6; ++t) before.update(t);
    if (type().type == std::string("ZeroOneAdam")) before.optimizer.synchronize();
    RankOfProblem after(other, type().plugin, type().type, Json::parse(params()), seat);
    // As if another group had taken part: the errors that come with it are those of other buffers.
    after.optimizer.resume_from(before.optimizer);
    std::string saved = before.optimizer.save();
    const auto place = saved.find("\"lengths\":[");
    EXPECT_NE(place, std::string::npos) << saved;
    saved.insert(place + 11, "8,");
    after.optimizer.load(saved);
    for (int t = 7; t <= 12; ++t) after.update(t);
    const auto& log = after.optimizer.component.log();
    const std::string notice = "info: " + std::string(type().type) +
                               ": the errors of the compression restart at zero; they were saved for other groups.";
    EXPECT_EQ(std::count(log.begin(), log.end(), notice), seat.rank == 0 ? 1 : 0);
  });
}

TEST_P(EachType, KeepsMaskedMomentaAtZeroWhereTheRestMoves) {
  Problem problem = noisy_problem(2, {12}, 4);
  problem.gradient = [one = problem.gradient](std::uint32_t rank, int t, std::size_t i) {
    return i < 8 ? one(rank, t, i) : 0.0;
  };
  std::string with_mask = params();
  with_mask.insert(1, R"("exp_avg_mask": [1, 1, 0], )");
  Meeting meeting(2);
  meeting.run([&](Seat seat) {
    for (const bool masked : {true, false}) {
      RankOfProblem rank(problem, type().plugin, type().type, Json::parse(masked ? with_mask : params()), seat);
      rank.optimizer.slot(0).shape = {3, 4};  // a mask for each row
      for (int t = 1; t <= 12; ++t) rank.update(t);
      if (type().type == std::string("ZeroOneAdam")) rank.optimizer.synchronize();
      const Vector m = values_of(rank.optimizer.state(0, "exp_avg"));
      for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(m[i] == 0, masked && i >= 8) << i;
    }
  });
}

TEST_P(EachType, RefusesMasksThatDoNotFit) {
  const auto complaint = [&](const char* mask) -> std::string {
    Json given = Json::parse(params());
    given["exp_avg_mask"] = Json::parse(mask);
    const Problem problem = noisy_problem(1, {12}, 4);
    try {
      Meeting meeting(1);
      meeting.run([&](Seat seat) {
        RankOfProblem rank(problem, type().plugin, type().type, given, seat);
        rank.optimizer.slot(0).shape = {3, 4};
        for (int t = 1; t <= 4; ++t) rank.update(t);
      });
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      complaint("[1, 1]"),
      "parameter 'p0': exp_avg_mask: must have one number for each of its 12 elements or for each of its 3 rows.");
  EXPECT_EQ(complaint("[1, 0.5, 1]"), "parameter 'p0': exp_avg_mask: holds 0.500000; it is made of 0 and 1.");
}

TEST_P(EachType, TakesGradientsOfSixteenBits) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    Meeting meeting(2);
    meeting.run([&](Seat seat) {
      const Problem problem = noisy_problem(2, {50, 14}, 4);
      OptimizerUnderTest narrow(type().plugin, type().type, Json::parse(params()), seat);
      OptimizerUnderTest wide(type().plugin, type().type, Json::parse(params()), seat);
      for (auto* optimizer : {&narrow, &wide}) {
        optimizer->add(noise(50, 1));
        optimizer->add(noise(14, 2));
        // Where the model computes in 16 bits, a group is one buffer.
        for (std::size_t k : {0, 1}) optimizer->slot(k).compute = optimizer->slot(k).param.to(dtype);
      }
      for (int t = 1; t <= 10; ++t) {
        const bool local = narrow.wants_local_gradients();
        for (std::size_t k : {0, 1}) {
          const auto seed = static_cast<std::uint64_t>(100 * t + (local ? 10 * seat.rank : 0)) + k;
          narrow.slot(k).grad = noise(k == 0 ? 50 : 14, seed).to(dtype);
          wide.slot(k).grad = narrow.slot(k).grad.to(at::kFloat);
        }
        narrow.update(0.5);
        wide.update(0.5);
        for (std::size_t k : {0, 1}) EXPECT_EQ(values_of(narrow.slot(k).param), values_of(wide.slot(k).param)) << t;
      }
      EXPECT_EQ(narrow.save().find("[64]") != std::string::npos, true) << narrow.save();
    });
  }
}

TEST_P(EachType, RefusesToLoseAParameterOnTheWay) {
  std::string text;
  try {
    const Problem problem = noisy_problem(2, {20, 4}, 1);
    Meeting meeting(2);
    meeting.run([&](Seat seat) {
      RankOfProblem rank(problem, type().plugin, type().type, Json::parse(params()), seat);
      for (int t = 1; t <= 5; ++t) rank.update(t);
      rank.optimizer.drop_last();
      rank.optimizer.update();
    });
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_EQ(text,
            "gets other parameters than at its first compressed update (1 now, 2 then). With own_communication every "
            "update must have all of them.");
}

INSTANTIATE_TEST_SUITE_P(Types, EachType, ::testing::Values(kAdam, kLamb, kZeroOne),
                         [](const auto& test) { return test.param.type; });

TEST(OneBitAdam, LeavesGroupsThatNeverFreezeUncompressed) {
  const Problem problem = noisy_problem(2, {30, 9}, 8);
  Json never = Json::object();
  never["non_freeze"] = true;
  Meeting meeting(2);
  meeting.run([&](Seat seat) {
    OptimizerUnderTest one_bit("onebit_adam", "OneBitAdam", Json::parse(R"({"freeze_step": 2})"), seat);
    OptimizerUnderTest adaptive("onebit_adam", "OneBitAdam", Json::parse(R"({"freeze_step": 1000})"), seat);
    one_bit.add_group(never);
    one_bit.add(noise(30, 1));
    one_bit.add(noise(9, 2), 1);
    adaptive.add(noise(9, 2));
    for (int t = 1; t <= 20; ++t) {
      const bool local = one_bit.wants_local_gradients();
      const at::Tensor own[] = {noise(9, 10 * t), noise(9, 10 * t + 1)};
      const at::Tensor mean = own[0].add(own[1]).mul(0.5);
      one_bit.slot(0).grad = noise(30, 500 + t);
      one_bit.slot(1).grad = local ? own[seat.rank] : mean;
      adaptive.slot(0).grad = mean;
      one_bit.update();
      adaptive.update();
    }
    EXPECT_EQ(values_of(one_bit.slot(1).param), values_of(adaptive.slot(0).param));
  });
}

/// Runs a problem with parameters cut over two ranks as ZeRO stage 1 cuts them, and without.
void compare_parts(const Type& type, const char* params) {
  const Problem problem = noisy_problem(2, {70, 33}, 21);
  // Elements of each parameter that belong to rank 0; rank 1 owns none of the first one's end to begin with.
  const std::int64_t cuts[] = {70, 12};
  Meeting meeting(2);
  meeting.run([&](Seat seat) {
    RankOfProblem whole(problem, type.plugin, type.type, Json::parse(params), seat);
    OptimizerUnderTest parts(type.plugin, type.type, Json::parse(params), seat);
    const auto begin = [&](std::size_t k) { return seat.rank == 0 ? 0 : cuts[k]; };
    const auto length = [&](std::size_t k) {
      return seat.rank == 0 ? cuts[k] : static_cast<std::int64_t>(problem.lengths[k]) - cuts[k];
    };
    for (std::size_t k : {0, 1}) {
      parts.add_part(whole.optimizer.slot(k).param.narrow(0, begin(k), length(k)).clone(),
                     static_cast<std::uint64_t>(begin(k)), problem.lengths[k]);
    }
    for (int t = 1; t <= 30; ++t) {
      const bool local = parts.wants_local_gradients();
      whole.update(t);
      parts.group(0)["lr"] = problem.lr(t);
      for (std::size_t k : {0, 1}) {
        const at::Tensor& grad = whole.optimizer.slot(k).grad;
        parts.slot(k).grad = local ? grad : grad.narrow(0, begin(k), length(k)).clone();
      }
      parts.update();
      for (std::size_t k : {0, 1}) {
        const Vector wanted = values_of(whole.optimizer.slot(k).param.narrow(0, begin(k), length(k)));
        const Vector found = values_of(parts.slot(k).param);
        for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 2e-7) << t << " " << k;
      }
    }
  });
}

TEST(OneBitAdam, GivesTheSameWithItsStateInParts) {
  compare_parts(kAdam, R"({"freeze_step": 5, "weight_decay": 0.01})");
}
TEST(OneBitLamb, GivesTheSameWithItsStateInParts) {
  compare_parts(kLamb, R"({"freeze_step": 5, "weight_decay": 0.01})");
}

TEST(ZeroOneAdam, RefusesPartsOfParameters) {
  OptimizerUnderTest optimizer("zero_one_adam", "ZeroOneAdam");
  optimizer.add_part(noise(5, 1), 5, 10);
  EXPECT_THAT([&] { optimizer.update(); }, ThrowsMessage<std::runtime_error>(
                                               "parameter 'p0': ZeroOneAdam steps on every rank by itself, so it needs "
                                               "whole parameters; this rank was given 5 of 10 elements."));
}

TEST(OneBitLamb, WarnsOfAFreezeThatComesBeforeTheMeanOfTheTrustRatios) {
  const auto log = [](const char* params) {
    return OptimizerUnderTest("onebit_lamb", "OneBitLamb", Json::parse(params)).component.log();
  };
  EXPECT_THAT(log(R"({"freeze_step": 99})"),
              ElementsAre("warning: freeze_step: 99 updates are too few for the mean of the trust ratios, which starts "
                          "at 0; with this coeff_beta give it 100 or more."));
  EXPECT_THAT(log(R"({"freeze_step": 100})"), IsEmpty());
  EXPECT_EQ(refusal(kLamb, R"({"min_coeff": 2, "max_coeff": 1})"), "min_coeff: must not exceed max_coeff.");
  EXPECT_EQ(refusal(kLamb, R"({"factor_min": 2, "factor_max": 1})"), "factor_min: must not exceed factor_max.");
}

TEST(OneBitLamb, MovesLayersWhoseMomentumOrRatioSaysNothing) {
  // The first layer has no gradient before the freeze; the second starts at 0, so that its ratio is 1.
  Problem problem = noisy_problem(2, {10, 10, 40}, 3);
  problem.gradient = [one = problem.gradient](std::uint32_t rank, int t, std::size_t i) {
    return i < 10 && t <= 1 ? 0.0 : one(rank, t, i);
  };
  problem.initial = [one = problem.initial](std::size_t i) { return i >= 10 && i < 20 ? 0.0 : one(i); };
  const Vector start = problem.start();
  run_ranks(problem, "onebit_lamb", "OneBitLamb", R"({"freeze_step": 1})", 4,
            [&](RankOfProblem& rank, std::uint32_t, int t) {
              for (const double value : rank.params()) EXPECT_TRUE(std::isfinite(value)) << t;
              if (t < 4) return;
              EXPECT_EQ(rank.optimizer.state(0, "scaling_coeff").item<float>(), 1.0f);
              const Vector params = rank.params();
              for (std::size_t i = 0; i < 20; ++i) EXPECT_NE(params[i], start[i]) << i;
            });
}

TEST(ZeroOneAdam, HasOneModelOnAllRanksAtEveryExchangeAndAfterSynchronize) {
  const Problem problem = noisy_problem(3, {33, 8}, 5);
  std::vector<std::vector<float>> ends(3), middles(3), synchronized(3);
  Meeting meeting(3);
  meeting.run([&](Seat seat) {
    RankOfProblem rank(problem, "zero_one_adam", "ZeroOneAdam",
                       Json::parse(R"({"var_freeze_step": 3, "local_step_scaler": 4, "local_step_clipper": 4})"), seat);
    for (int t = 1; t <= 400; ++t) rank.update(t);
    ends[seat.rank] = rank.bits();  // 400 is a multiple of 4
    rank.update(401);
    rank.update(402);
    middles[seat.rank] = rank.bits();
    rank.optimizer.synchronize();
    synchronized[seat.rank] = rank.bits();
    rank.optimizer.synchronize();
    EXPECT_EQ(rank.bits(), synchronized[seat.rank]) << "nothing has happened since the last one";
  });
  EXPECT_THAT(ends, Each(ends[0]));
  EXPECT_NE(middles[0], middles[1]);
  EXPECT_THAT(synchronized, Each(synchronized[0]));
  EXPECT_NE(synchronized[0], ends[0]);
}

TEST(ZeroOneAdam, TakesFullGradientsInGrowingIntervals) {
  std::vector<int> full;
  const Problem problem = noisy_problem(2, {8}, 5);
  run_ranks(problem, "zero_one_adam", "ZeroOneAdam", R"({"var_update_scaler": 2})", 64,
            [&](RankOfProblem& rank, std::uint32_t index, int t) {
              if (index == 0 && !rank.optimizer.wants_local_gradients()) full.push_back(t + 1);
            });
  EXPECT_THAT(full, ElementsAre(2, 4, 6, 8, 12, 16, 24, 32, 48, 64));
}

TEST(ZeroOneAdam, TrainsAlone) {
  const Problem problem = noisy_problem(1, {16}, 5);
  std::vector<Vector> momenta;
  run_ranks(problem, "zero_one_adam", "ZeroOneAdam", R"({"var_update_scaler": 2})", 5,
            [&](RankOfProblem& rank, std::uint32_t, int) {
              momenta.push_back(values_of(rank.optimizer.state(0, "exp_avg")));
            });
  for (std::size_t t = 1; t < momenta.size(); ++t) EXPECT_NE(momenta[t], momenta[t - 1]) << t;
}

}  // namespace
}  // namespace capstan::testing

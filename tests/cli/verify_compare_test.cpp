#include "cli/verify/verify_compare.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <functional>

#include "cli/verify/verify_record.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kFloat = 0x1p-23;

/// Two steps of two parameters, as a run records them.
class Records : public ::testing::Test {
 protected:
  using Change = std::function<void(const std::string& name, std::int64_t step, at::Tensor& gradient)>;

  Records() { at::manual_seed(7); }

  std::filesystem::path write(const std::string& name, const Change& change = nullptr,
                              const std::function<void(Json& facts)>& change_facts = nullptr,
                              const std::function<void(at::Tensor& weight)>& change_weights = nullptr) {
    const std::filesystem::path folder = folder_ / name;
    std::filesystem::create_directories(folder);
    std::vector<SafetensorsEntry> first, last;
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      at::Tensor weight = weights_[i] + 0.1;
      if (change_weights) change_weights(weight);
      first.push_back({kNames[i], weights_[i]});
      last.push_back({kNames[i], weight});
    }
    write_safetensors(RunRecord::first_weights(folder), first);
    write_safetensors(RunRecord::weights(folder), last);
    for (std::int64_t step = 0; step < 2; ++step) {
      std::vector<SafetensorsEntry> entries;
      for (std::size_t i = 0; i < kNames.size(); ++i) {
        at::Tensor gradient = gradients_[i] * static_cast<double>(step + 1);
        if (change) change(kNames[i], step, gradient);
        if (gradient.defined()) entries.push_back({kNames[i], gradient});
      }
      write_safetensors(RunRecord::gradients(folder, step), entries);
    }
    Json facts = Json::parse(R"({"parameters": ["first.weight", "last.weight"], "first_step": 0, "losses": [2.5, 2.25],
      "samples": [["a", "b"], ["c", "d"]]})");
    if (change_facts) change_facts(facts);
    write_bytes(RunRecord::facts(folder), facts.dump());
    return folder;
  }

  VerifyComparison compared(const std::filesystem::path& run, const VerifyBound& bound = VerifyBound::equal()) {
    return compare_records(write("reference"), run, bound, {.accumulation = 4, .processes = 2});
  }

  inline static const std::vector<std::string> kNames = {"first.weight", "last.weight"};
  TemporaryFolder folder_;
  const std::vector<at::Tensor> weights_ = {at::randn({3, 4}), at::randn({5})},
                                gradients_ = {at::randn({3, 4}), at::randn({5})};
};

TEST_F(Records, ThatAreEqualAreSaidToBe) {
  const VerifyComparison found = compared(write("run"));
  EXPECT_EQ(found.loss.text(), "equal");
  EXPECT_EQ(found.gradients.text(), "equal");
  EXPECT_EQ(found.weights.text(), "equal");
  EXPECT_THAT(found.found, IsEmpty());
}

TEST_F(Records, MayBeOffByWhatRoundingMakesWhereThatIsTheBound) {
  const auto run = write(
      "run", [](const std::string&, std::int64_t, at::Tensor& gradient) { gradient = gradient * (1 + 4 * kFloat); });
  EXPECT_TRUE(compared(run).gradients.too_large);
  const VerifyComparison within = compared(run, VerifyBound::within("sums of 2 ranks", kFloat));
  EXPECT_FALSE(within.gradients.too_large);
  EXPECT_NE(within.gradients.text(), "equal");
  EXPECT_THAT(within.found, IsEmpty());
}

TEST_F(Records, AreNotExcusedByABoundWhereAGradientIsWrong) {
  const struct {
    double factor;
    const char* cause;
  } faults[] = {{4, "(4 times). It is a sum over micro-batches where a mean is due."},
                {0.25, "(0.25 times). One of the micro-batches counts alone, or the mean is taken twice."},
                {2, "(2 times). It is a sum over ranks where a mean is due."},
                {0.5, "(0.5 times). One of the ranks counts alone, or the mean is taken twice."},
                {65536, "(6.55e+04 times). That looks like a loss scale that was not taken out."},
                {0, "(0 times). Nothing adds to this gradient."},
                {3, "(3 times)."}};
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.factor);
    const auto run = write("run", [&](const std::string& name, std::int64_t, at::Tensor& gradient) {
      if (name == "first.weight") gradient = gradient * fault.factor;
    });
    const VerifyComparison found = compared(run, VerifyBound::within("sums of 2 ranks", kFloat));
    EXPECT_EQ(found.gradients.text(), "DIFFERS");
    EXPECT_THAT(found.found, HasSubstr("the gradient of 'first.weight' at step 0, element "));
    EXPECT_THAT(found.found, HasSubstr(fault.cause));
  }
}

TEST_F(Records, NameTheFirstParameterOfBackwardWhichIsTheLastOfTheModel) {
  const auto run = write("run", [](const std::string&, std::int64_t step, at::Tensor& gradient) {
    if (step == 1) gradient = gradient + 1;
  });
  const VerifyComparison found = compared(run, VerifyBound::within("sums of 2 ranks", kFloat));
  EXPECT_THAT(found.found, HasSubstr("the gradient of 'last.weight' at step 1, element "));
  EXPECT_FALSE(found.explained);
}

TEST_F(Records, NameAGradientThatOneRunLacksOrThatIsNotFinite) {
  const auto lacks = write("run", [](const std::string& name, std::int64_t, at::Tensor& gradient) {
    if (name == "first.weight") gradient = at::Tensor();
  });
  EXPECT_THAT(compared(lacks).found,
              "the gradient of 'first.weight' at step 0 is missing, and is there in the other run.");
  const auto infinite = write("infinite", [](const std::string& name, std::int64_t, at::Tensor& gradient) {
    if (name == "last.weight") gradient = gradient / 0;
  });
  EXPECT_THAT(compared(infinite, VerifyBound::within("sums of 2 ranks", kFloat)).found,
              HasSubstr("which is not finite."));
}

TEST_F(Records, TellOtherSamplesFirst) {
  const auto run = write(
      "run", [](const std::string&, std::int64_t, at::Tensor& gradient) { gradient = gradient * 3; },
      [](Json& facts) { facts["samples"].as_array()[1] = Json::parse(R"(["c", "e"])"); });
  EXPECT_THAT(compared(run).found, HasSubstr("the gradient of 'last.weight' at step 0"));
  const auto samples = write("samples", nullptr, [](Json& facts) {
    facts["samples"].as_array()[0] = Json::parse(R"(["a", "a"])");
    facts["losses"].as_array()[0] = 9.0;
  });
  EXPECT_THAT(compared(samples).found, HasSubstr("the ranks saw other samples at step 0."));
}

TEST_F(Records, CompareLossesAndWeightsByTheBound) {
  const auto run = write(
      "run", nullptr, [](Json& facts) { facts["losses"].as_array()[1] = 2.25 * (1 + 1e-6); },
      [](at::Tensor& weight) { weight = weight + 1e-7; });
  const VerifyComparison exact = compared(run);
  EXPECT_THAT(exact.found, HasSubstr("the loss at step 1 is "));
  EXPECT_TRUE(exact.weights.too_large);
  EXPECT_THAT(compared(run, VerifyBound::within("sums of 2 ranks", kFloat)).found, IsEmpty());
  const auto far = write("far", nullptr, nullptr, [](at::Tensor& weight) { weight = weight + 0.01; });
  EXPECT_THAT(compared(far, VerifyBound::within("sums of 2 ranks", kFloat)).found,
              HasSubstr("the weights of 'first.weight' differ at the end, element "));
}

TEST_F(Records, OfAResumedRunAreComparedOverItsOwnSteps) {
  const auto run = write(
      "run",
      [](const std::string&, std::int64_t step, at::Tensor& gradient) {
        if (step == 0) gradient = gradient * 9;
      },
      [](Json& facts) {
        facts["first_step"] = 1;
        facts["losses"] = Json::parse("[2.25]");
        facts["samples"] = Json::parse(R"([["c", "d"]])");
      });
  // They are the weights of the checkpoint.
  write_safetensors(RunRecord::first_weights(run), {{kNames[0], weights_[0] + 1}, {kNames[1], weights_[1] + 1}});
  EXPECT_THAT(compared(run).found, IsEmpty());
}

TEST_F(Records, ThatAreNotWholeAreRefused) {
  const auto run = write("run", nullptr, [](Json& facts) { facts = Json::parse(R"({"parameters": ["other"]})"); });
  EXPECT_THAT([&] { compared(run); },
              ::testing::ThrowsMessage<RuntimeFault>(HasSubstr("is not the whole record of a run")));
  EXPECT_THAT([&] { compared(folder_ / "none"); },
              ::testing::ThrowsMessage<RuntimeFault>(HasSubstr("is not the whole record of a run")));
}

TEST_F(Records, NameAStateThatDiffers) {
  const auto with_states = [&](const std::string& name, double first, double second) {
    const auto folder = write(name);
    write_safetensors(RunRecord::states(folder), {{"last.weight/exp_avg", gradients_[1] * first},
                                                  {"last.weight/exp_avg_sq", gradients_[1] * second}});
    return folder;
  };
  const auto reference = with_states("states", 1, 1);
  EXPECT_THAT(compare_records(reference, with_states("same", 1, 1), VerifyBound::equal(), {}).found, IsEmpty());
  const VerifyComparison found = compare_records(reference, with_states("other", 1, 2), VerifyBound::equal(), {});
  EXPECT_EQ(found.weights.text(), "DIFFERS");
  EXPECT_THAT(found.found, HasSubstr("the state 'exp_avg_sq' of 'last.weight' differs at the end, element "));
  const VerifyBound bound = VerifyBound::within("sums of 2 ranks", kFloat);
  EXPECT_THAT(compare_records(reference, with_states("near", 1 + 8 * kFloat, 1), bound, {}).found, IsEmpty());
  // A peer that tells of no states.
  EXPECT_THAT(compare_records(reference, write("none"), VerifyBound::equal(), {}).found, IsEmpty());
}

TEST_F(Records, NameALossThatGrowsWithTheRows) {
  const auto run = write("run", nullptr, [](Json& facts) { facts["losses"] = Json::parse("[1.25, 1.125]"); });
  const VerifyFactors factors = {.accumulation = 2, .processes = 1, .rows = 0.5};
  EXPECT_THAT(compare_records(write("reference"), run, VerifyBound::within("sums", kFloat), factors).found,
              HasSubstr("the loss at step 0 is 1.25, and 2.5 there. It grows with the rows of a micro-batch"));
}

TEST_F(Records, DoNotCountWeightsThatMoveWithNothingButRounding) {
  const auto small = [](const std::string& name, std::int64_t, at::Tensor& gradient) {
    if (name == "last.weight") gradient = gradient * 1e-8;
  };
  const auto moved = [](at::Tensor& weight) {
    if (weight.dim() == 1) weight.add_(0.5);
  };
  const VerifyBound bound = VerifyBound::within("sums of 2 ranks", kFloat);
  EXPECT_THAT(compare_records(write("small", small), write("small moved", small, nullptr, moved), bound, {}).found,
              IsEmpty());
  EXPECT_THAT(compare_records(write("all"), write("all moved", nullptr, nullptr, moved), bound, {}).found,
              HasSubstr("the weights of 'last.weight' differ at the end"));
  EXPECT_THAT(
      compare_records(write("small", small), write("small moved", small, nullptr, moved), VerifyBound::equal(), {})
          .found,
      HasSubstr("the weights of 'last.weight' differ at the end"));
}

}  // namespace
}  // namespace capstan::cli

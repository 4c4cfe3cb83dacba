#include "core/run/token_sampling.hpp"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/process.hpp"
#include "tests/support/readers.hpp"

namespace capstan {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

/// exp(score) of the tokens that are kept, as parts of their sum.
std::vector<double> expected(const std::vector<double>& scores, const std::vector<int>& kept) {
  std::vector<double> parts(scores.size(), 0);
  double sum = 0;
  for (const int token : kept)
    sum += parts[static_cast<std::size_t>(token)] = std::exp(scores[static_cast<std::size_t>(token)]);
  for (double& part : parts) part /= sum;
  return parts;
}

const std::vector<double> kScores = {0.5, 2, -1, 2, 1.5, 0};

std::vector<double> probabilities(const TokenSampling& sampling, const std::vector<double>& scores = kScores) {
  return token_probabilities(at::tensor(scores), sampling);
}

TEST(TokenSampling, GivesTheSoftmaxOfLogitsDividedByTheTemperature) {
  std::vector<double> halved = kScores;
  for (double& score : halved) score /= 2;
  EXPECT_THAT(probabilities({.temperature = 1}), Pointwise(DoubleNear(1e-12), expected(kScores, {0, 1, 2, 3, 4, 5})));
  EXPECT_THAT(probabilities({.temperature = 2}), Pointwise(DoubleNear(1e-12), expected(halved, {0, 1, 2, 3, 4, 5})));
}

TEST(TokenSampling, DrawsTheLikeliestTokensNearTemperature0) {
  EXPECT_THAT(probabilities({.temperature = 1e-310}), ElementsAre(0, 0.5, 0, 0.5, 0, 0));
}

TEST(TokenSampling, KeepsTheLikeliestTokensAndThoseAsLikelyAsTheLast) {
  EXPECT_THAT(probabilities({.temperature = 1, .top_k = 3}),
              Pointwise(DoubleNear(1e-12), expected(kScores, {1, 3, 4})));
  EXPECT_THAT(probabilities({.temperature = 1, .top_k = 1}), Pointwise(DoubleNear(1e-12), expected(kScores, {1, 3})));
  EXPECT_THAT(probabilities({.temperature = 1, .top_k = 9}), probabilities({.temperature = 1}));
}

TEST(TokenSampling, KeepsTheLikeliestTokensWhoseSumReachesP) {
  // 0.5, 0.3, 0.15, 0.05
  const std::vector<double> scores = {std::log(0.15), std::log(0.5), std::log(0.05), std::log(0.3)};
  const auto kept = [&](double p) {
    std::vector<int> tokens;
    const auto found = probabilities({.temperature = 1, .top_p = p}, scores);
    for (int i = 0; i < 4; ++i) {
      if (found[static_cast<std::size_t>(i)] > 0) tokens.push_back(i);
    }
    return tokens;
  };
  EXPECT_THAT(kept(0.01), ElementsAre(1));
  EXPECT_THAT(kept(0.49), ElementsAre(1));
  EXPECT_THAT(kept(0.51), ElementsAre(1, 3));
  EXPECT_THAT(kept(0.79), ElementsAre(1, 3));
  EXPECT_THAT(kept(0.81), ElementsAre(0, 1, 3));
  EXPECT_THAT(kept(0.96), ElementsAre(0, 1, 2, 3));
  // After the temperature, which makes them 0.38, 0.29, 0.21, 0.12.
  const auto hot = probabilities({.temperature = 2, .top_p = 0.51}, scores);
  EXPECT_GT(hot[3], 0);
  EXPECT_EQ(hot[0], 0);
  EXPECT_GT(probabilities({.temperature = 2, .top_p = 0.7}, scores)[0], 0);
}

TEST(TokenSampling, TakesTheFirstOfTheLikeliestTokensAtTemperature0) {
  EXPECT_EQ(chosen_token(at::tensor(kScores), {.temperature = 0, .seed = 7}, 3, 9), 1);
}

TEST(TokenSampling, DrawsByTheProbabilities) {
  constexpr int kDraws = 10000;
  // What chi squared exceeds once in a thousand times, by the degrees of freedom.
  const std::vector<double> bounds = {0, 10.83, 13.82, 16.27, 18.47, 20.52};
  for (const TokenSampling& sampling :
       std::vector<TokenSampling>{{.temperature = 1, .seed = 5},
                                  {.temperature = 0.9, .top_k = 5, .seed = 5},
                                  {.temperature = 1.7, .top_p = 0.85, .seed = 6},
                                  {.temperature = 0.6, .top_k = 4, .top_p = 0.9, .seed = 7}}) {
    std::vector<int> seen(kScores.size(), 0);
    for (std::uint32_t position = 0; position < kDraws; ++position) {
      ++seen[static_cast<std::size_t>(chosen_token(at::tensor(kScores), sampling, 0, position))];
    }
    const std::vector<double> wanted = probabilities(sampling);
    double chi_squared = 0;
    std::size_t possible = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (wanted[i] == 0) {
        EXPECT_EQ(seen[i], 0) << i;
        continue;
      }
      ++possible;
      const double mean = wanted[i] * kDraws;
      chi_squared += (seen[i] - mean) * (seen[i] - mean) / mean;
    }
    EXPECT_LT(chi_squared, bounds.at(possible - 1)) << sampling.temperature;
    EXPECT_EQ(possible<kScores.size(), sampling.top_k> 0 || sampling.top_p < 1);
  }
}

TEST(TokenSampling, DependsOnSeedSequenceAndPositionAlone) {
  const at::Tensor logits = at::tensor(std::vector<double>(1000, 0.0));
  const auto draw = [&](std::uint64_t seed, std::uint64_t sequence, std::uint32_t position) {
    return chosen_token(logits, {.temperature = 1, .seed = seed}, sequence, position);
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(2, 2, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 3, 3));
  EXPECT_NE(draw(1, 2, 3), draw(1, 2, 4));
}

TEST(TokenSampling, GivesTheProbabilitiesOfTransformers) {
  const std::string python = test::reader_program("python", "CAPSTAN_TRANSFORMERS_PYTHON");
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  std::vector<double> scores;
  for (int i = 0; i < 200; ++i) scores.push_back(3 * std::sin(1.7 * i));
  std::string list;
  for (const double score : scores) list += (list.empty() ? "" : ",") + std::to_string(score);
  for (double& score : scores) score = std::stod(std::to_string(score));
  const ProcessResult theirs =
      run_process({python, "-W", "ignore", CAPSTAN_TEST_SOURCE_DIR "/tests/core/run/sampling_reference.py", list, "0.7",
                   "40", "0.8"});
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;

  const std::vector<double> ours = probabilities({.temperature = 0.7, .top_k = 40, .top_p = 0.8}, scores);
  std::vector<double> wanted;
  for (std::size_t at = 0; wanted.size() < ours.size();) {
    std::size_t used = 0;
    wanted.push_back(std::stod(theirs.out.substr(at), &used));
    at += used;
  }
  EXPECT_THAT(ours, Pointwise(DoubleNear(1e-6), wanted));
  EXPECT_LT(std::count_if(ours.begin(), ours.end(), [](double p) { return p > 0; }), 40);
}

}  // namespace
}  // namespace capstan

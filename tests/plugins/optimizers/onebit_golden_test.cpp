#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/plugins/optimizers/onebit_ranks.hpp"

namespace capstan::testing {
namespace {

using ::testing::Pointwise;

MATCHER_P(Near, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }

constexpr double kFp32 = 3e-7;  // an ulp or two of 1, and the seven digits of the tables

Vector first(const Vector& values, std::size_t from, std::size_t count) {
  return {values.begin() + static_cast<std::ptrdiff_t>(from),
          values.begin() + static_cast<std::ptrdiff_t>(from + count)};
}

TEST(OneBitAdam, GivesTheGoldenValues) {
  const std::vector<Vector> params = {{-.7815478, -.6815578, -.5815677, -.4183323},
                                      {-.8239655, -.7239855, -.6240055, -.3757945},
                                      {-.8568367, -.7578734, -.7129965, -.2873062},
                                      {-.9038436, -.806329, -.8401879, -.160876},
                                      {-.9554649, -.8595398, -.979849, -.0220605}};
  const std::vector<Vector> momenta = {{.0920735, .0893440, .0340711, -.0343033},
                                       {.1749397, .1697536, .0647351, -.0651762},
                                       {.1356575, .1356575, .1356575, -.1356575},
                                       {.1938627, .1938627, .1938627, -.1938627},
                                       {.2128774, .2128774, .2128774, -.2128774}};
  run_ranks(
      golden_problem({16}), "onebit_adam", "OneBitAdam", R"({"lr": 0.01, "weight_decay": 0.01, "freeze_step": 2})", 5,
      [&](RankOfProblem& rank, std::uint32_t, int t) {
        EXPECT_THAT(first(rank.params(), 0, 4), Pointwise(Near(kFp32), params[t - 1])) << t;
        EXPECT_THAT(first(values_of(rank.optimizer.state(0, "exp_avg")), 0, 4), Pointwise(Near(kFp32), momenta[t - 1]))
            << t;
      });
}

TEST(OneBitLamb, GivesTheGoldenValues) {
  struct Row {
    double ratio_a, mean_a, ratio_b, mean_b;  // after the freeze: factor, coefficient
    Vector a, b;
  };
  const std::vector<Row> rows = {
      {.1671620, .0167162, .1312400, .0131240, {-.7552736, -.6552753, -.5552769}, {-.1458479, -.0541495, .0541495}},
      {.1247348, .0275181, .0971183, .0215234, {-.7605649, -.6605678, -.5605707}, {-.1417193, -.0582760, .0582761}},
      {.9989989, .0274905, .9947964, .0214114, {-.7616619, -.6616986, -.5635393}, {-.1383302, -.0369441, .0625413}},
      {.8990990, .0247415, .8953168, .0192703, {-.7630659, -.6631458, -.5673372}, {-.1339951, -.0096571, .0678304}},
      {.8091891, .0222673, .8061044, .0173501, {-.7644621, -.6645850, -.5711136}, {-.1296828, -.0368003, .0741920}}};
  run_ranks(golden_problem({6, 10}), "onebit_lamb", "OneBitLamb",
            R"({"lr": 0.01, "weight_decay": 0.01, "freeze_step": 2})", 5,
            [&](RankOfProblem& rank, std::uint32_t, int t) {
              const Row& row = rows[t - 1];
              EXPECT_THAT(first(rank.params(), 0, 3), Pointwise(Near(kFp32), row.a)) << t;
              EXPECT_THAT(first(rank.params(), 6, 3), Pointwise(Near(kFp32), row.b)) << t;
              const auto number = [&](std::size_t slot, const char* name) {
                return rank.optimizer.state(slot, name).item<double>();
              };
              if (t <= 2) {
                EXPECT_NEAR(number(0, "lamb_coeff"), row.ratio_a, kFp32) << t;
                EXPECT_NEAR(number(1, "lamb_coeff"), row.ratio_b, kFp32) << t;
                EXPECT_NEAR(number(0, "lamb_coeff_freeze"), row.mean_a, kFp32) << t;
                EXPECT_NEAR(number(1, "lamb_coeff_freeze"), row.mean_b, kFp32) << t;
              } else {
                EXPECT_NEAR(number(0, "last_factor"), row.ratio_a, 1e-6) << t;
                EXPECT_NEAR(number(1, "last_factor"), row.ratio_b, 1e-6) << t;
                EXPECT_NEAR(number(0, "lamb_coeff"), row.mean_a, kFp32) << t;
                EXPECT_NEAR(number(1, "lamb_coeff"), row.mean_b, kFp32) << t;
                EXPECT_NEAR(number(0, "scaling_coeff"), .8579462494, 1e-6);
                EXPECT_NEAR(number(1, "scaling_coeff"), 1.1984288853, 1e-6);
              }
            });
}

TEST(ZeroOneAdam, GivesTheGoldenValues) {
  const std::map<int, std::vector<Vector>> rows = {
      {1, {{-.7815478, -.6815578, -.5815677}}},
      {2, {{-.8239655, -.7239855, -.6240055}}},
      {3, {{-.8758397, -.7762885, -.6992398}}},
      {4, {{-.9322083, -.8329750, -.7727819}}},
      {5, {{-.9992308, -.9007826, -.8830182}}},
      {6, {{-1.0432827, -.9461804, -1.0020638}}},
      {7, {{-1.0996649, -1.0042851, -1.1544306}}},
      {8, {{-1.1557137, -1.0620463, -1.3058964}}},
      {9, {{-1.2227361, -1.1325159, -1.4496510}, {-1.2258812, -1.1318674, -1.4710523}}},
      {12, {{-1.3975932, -1.3113154, -1.9595498}}},
      {16, {{-1.7096315, -1.6328868, -2.8027996}}}};
  run_ranks(golden_problem({16}), "zero_one_adam", "ZeroOneAdam",
            R"({"lr": 0.01, "weight_decay": 0.01, "var_freeze_step": 4, "var_update_scaler": 2, "local_step_scaler": 2,
                "local_step_clipper": 4})",
            16, [&](RankOfProblem& rank, std::uint32_t index, int t) {
              const auto row = rows.find(t);
              if (row == rows.end()) return;
              const Vector& expected = row->second[row->second.size() > 1 ? index : 0];
              EXPECT_THAT(first(rank.params(), 0, 3), Pointwise(Near(2 * kFp32), expected)) << t;
            });
}

}  // namespace
}  // namespace capstan::testing

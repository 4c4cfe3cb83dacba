#include "core/tuning/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <random>

#include "core/errors.hpp"
#include "core/registry/host.hpp"
#include "core/registry/registry.hpp"
#include "core/tuning/tuning_table.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Tuner tuner(const std::string& type, const std::string& folder = "/lib/capstan/plugins/tuners") {
  static const capstan_host host = make_host();
  Registry registry(PluginIndex::scan_only(CAPSTAN_TEST_BUILD_DIR + folder));
  return Tuner(registry.create("test", "tuner", type, Json::object(), &host));
}

Tuner bad_tuner(const char* how) {
  setenv("CAPSTAN_BAD", how, 1);
  static const capstan_host host = make_host();
  Registry registry(PluginIndex::scan_only(CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins"));
  Json params = Json::object();
  params["knob"] = 1;
  return Tuner(registry.create("test", "tuner", "Bad", params, &host));
}

/// Tables of a machine that this test makes up, for no other purpose than to search them: a step costs what the cost
/// model's terms say, times a factor for each value that the model knows nothing of, times noise. They are no
/// measurements.
struct MadeUp {
  double compute, wire, per_call;  // seconds a sample, a byte, a call
  double noise = 0.01;
  double hidden = 0.1;  // how much values that the model does not see change
};

TuningTable made_up_table(const MadeUp& machine, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  TuningTable table;
  table.space.features = {"zero_optimization.stage", "train_micro_batch_size_per_gpu",
                          "zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm",
                          "zero_optimization.allgather_partitions"};
  table.guess = {2e-3, 2e-2, 1e-9, 5e-10, 1e-4, 2e-9};
  constexpr double kElements = 2e6;
  const double factors[2] = {1 + machine.hidden * normal(random), 1 + machine.hidden * normal(random)};
  for (const int stage : {0, 1, 2}) {
    for (const double micro : {1.0, 2.0, 4.0, 8.0}) {
      for (const double bucket : {16384.0, 131072.0, 1310720.0}) {
        for (const bool overlap : {false, true}) {
          for (const bool gather : {false, true}) {
            if (stage == 0 && gather) continue;
            const double accumulation = 8 / micro, bytes = 4 * kElements * (stage == 0 ? 1.0 : 1.1),
                         calls = kElements / bucket;
            SearchPoint point;
            point.stage = stage;
            point.terms = cost_terms({accumulation, 8, bytes, calls, kElements / (stage > 0 ? 2 : 1), overlap});
            point.samples = 16;
            double seconds = 3e-3 * accumulation + 8 * machine.compute * (1 + 0.3 / micro) +
                             machine.wire * bytes * (overlap ? 0.4 : 1) +
                             machine.per_call * calls * (overlap ? 1.3 : 1);
            if (gather) seconds *= factors[0];
            if (stage == 2) seconds *= factors[1];
            table.points.push_back(point);
            table.space.points.push_back("p" + std::to_string(table.points.size()));
            for (const double value :
                 {static_cast<double>(stage), micro, bucket, overlap ? 1.0 : 0.0, gather ? 1.0 : 0.0}) {
              table.space.values.push_back(value);
            }
            std::vector<double> runs;
            for (int run = 0; run < 3; ++run) runs.push_back(seconds * (1 + machine.noise * normal(random)));
            table.runs.push_back(runs);
            table.peaks.push_back(0);
          }
        }
      }
    }
  }
  return table;
}

int good_searches(const TuningTable& table, const std::string& type, int seeds = 100) {
  const auto budget = static_cast<std::size_t>(0.2 * static_cast<double>(table.points.size()));
  int good = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    Tuner one = tuner(type);
    const Replay found = replay(table, one, budget, static_cast<std::uint64_t>(seed));
    EXPECT_LE(found.trials, budget);
    good += found.excess <= 0.03 + table.spread();
  }
  return good;
}

TEST(Search, OfTheModelBasedTunerComesNearTheBestInAFifthOfThePoints) {
  const MadeUp machines[] = {{2e-2, 2e-9, 1e-4}, {5e-3, 4e-8, 1e-3}, {1e-3, 8e-9, 5e-3}};
  int random = 0, model = 0;
  for (std::uint64_t table = 0; const MadeUp& machine : machines) {
    const TuningTable made = made_up_table(machine, ++table);
    ASSERT_GE(made.points.size(), 64u);
    const int good = good_searches(made, "model_based");
    EXPECT_GE(good, 95) << "table " << table;
    model += good;
    random += good_searches(made, "random");
  }
  EXPECT_LT(random, model);
}

/// Tables of bench/tuning/record_tables: times of this program on a machine of two processors.
class RecordedTables : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedTables, LetTheModelBasedTunerComeNearTheBestInAFifthOfThePoints) {
  const std::string file = std::string(CAPSTAN_TEST_SOURCE_DIR "/tests/core/tuning/tables/") + GetParam() + ".json";
  const TuningTable table = TuningTable::parse(Json::parse(test::read_bytes(file)), file);
  ASSERT_GE(table.points.size(), 64u);
  for (const std::vector<double>& runs : table.runs) EXPECT_TRUE(runs.empty() || runs.size() >= 3);
  const int model = good_searches(table, "model_based");
  EXPECT_GE(model, 95);
  std::cout << GetParam() << ": " << table.points.size() << " points, spread " << table.spread()
            << "; near the best in a fifth of them: model_based " << model << " of 100, random "
            << good_searches(table, "random") << ", gridsearch " << good_searches(table, "gridsearch") << "\n";
}

INSTANTIATE_TEST_SUITE_P(Machines, RecordedTables, ::testing::Values("one_host", "memory", "gbit", "mbit"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Search, GoesThroughTheGridInItsOrder) {
  const TuningTable table = made_up_table({2e-2, 2e-9, 1e-4}, 1);
  Tuner grid = tuner("gridsearch");
  grid.start(table.space, 4, 1);
  SearchLimits limits;
  limits.trials = 4;
  limits.most_runs = 1;
  std::vector<std::size_t> order;
  const SearchResult result = search(grid, table.points, table.guess, limits, [&](std::size_t point) {
    order.push_back(point);
    return std::optional(1.0 + static_cast<double>(point));
  });
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(result.stopped, "the number of trials is reached");
  EXPECT_EQ(result.tried[result.best.value()].point, 0u);
}

SearchResult search_grid(const SearchLimits& limits, const RunPoint& run) {
  const TuningTable table = made_up_table({2e-2, 2e-9, 1e-4}, 1);
  Tuner grid = tuner("gridsearch");
  grid.start(table.space, table.points.size(), 1);
  return search(grid, table.points, table.guess, limits, run);
}

TEST(Search, StopsAfterTrialsWithoutANewBest) {
  SearchLimits limits;
  limits.early_stopping = 3;
  const SearchResult result = search_grid(
      limits, [](std::size_t point) { return std::optional(point == 2 ? 1.0 : 2.0 + static_cast<double>(point)); });
  EXPECT_THAT(result.tried, SizeIs(6));
  EXPECT_EQ(result.stopped, "no better point in the last 3 trials");
}

TEST(Search, TriesNoMoreThanItsTrialsAtAStage) {
  SearchLimits limits;
  limits.trials_per_stage = 2;
  const SearchResult result =
      search_grid(limits, [](std::size_t point) { return std::optional(1.0 + static_cast<double>(point)); });
  EXPECT_THAT(result.tried, SizeIs(6));  // three stages
}

TEST(Search, HasNoBestWhereEveryTrialFails) {
  const SearchResult result = search_grid({}, [](std::size_t) { return std::optional<double>(); });
  EXPECT_FALSE(result.best);
  EXPECT_EQ(result.stopped, "every point was tried");
}

TEST(Search, TellsLeadersApartThatNoiseHasMixedUp) {
  SearchLimits limits;
  limits.trials = 2;
  limits.most_runs = 8;
  std::vector<int> runs(2);
  const SearchResult result = search_grid(limits, [&](std::size_t point) {
    // The second is the better one, and its first run was disturbed.
    const int run = runs.at(point)++;
    return std::optional(point == 0 ? 1.0 + 0.001 * run : run == 0 ? 1.05 : 0.9 + 0.001 * run);
  });
  EXPECT_EQ(result.tried[result.best.value()].point, 1u);
  EXPECT_GE(runs[1], 3);
}

TEST(Search, NamesTheTunerThatChoosesTwice) {
  Tuner bad = bad_tuner("points");
  const TuningTable table = made_up_table({2e-2, 2e-9, 1e-4}, 1);
  bad.start(table.space, 20, 1);
  try {
    search(bad, table.points, table.guess, {}, [](std::size_t) { return std::optional(1.0); });
    FAIL();
  } catch (const PluginError& error) {
    EXPECT_STREQ(error.what(), "tuner 'Bad': chose 'p3' twice. Ask the plugin's author.");
  }
}

TEST(Search, NamesTheTunerThatChoosesWhatIsNotThere) {
  Tuner bad = bad_tuner("points_outside");
  const TuningTable table = made_up_table({2e-2, 2e-9, 1e-4}, 1);
  bad.start(table.space, 20, 1);
  try {
    bad.ask(std::vector<double>(table.points.size()), 1);
    FAIL();
  } catch (const PluginError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("chose point 120, and there are 120, from 0 on"), HasSubstr("'Bad'")));
  }
}

TEST(TuningTable, IsReadAsItWasWritten) {
  const TuningTable table = made_up_table({2e-2, 2e-9, 1e-4}, 1);
  const TuningTable read = TuningTable::parse(Json::parse(table.json().dump()), "table.json");
  EXPECT_EQ(read.runs, table.runs);
  EXPECT_EQ(read.space.values, table.space.values);
  EXPECT_EQ(read.space.points, table.space.points);
  EXPECT_DOUBLE_EQ(read.least_cost(), table.least_cost());
}

TEST(TuningTable, NamesWhatAFileLacks) {
  for (const char* text : {"{}", "{\"capstan_tuning_table\": 2}", "{\"capstan_tuning_table\": 1, \"features\": 3}"}) {
    EXPECT_THROW(TuningTable::parse(Json::parse(text), "table.json"), ConfigError) << text;
  }
}

}  // namespace
}  // namespace capstan::testing

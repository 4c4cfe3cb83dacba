#include "core/memory/use_trace.hpp"

#include <gmock/gmock.h>

#include <random>

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Whether each use of a pass is kept.
std::vector<bool> pass(UseTrace& trace, const std::vector<std::size_t>& uses) {
  std::vector<bool> kept;
  trace.begin();
  for (const std::size_t unit : uses) kept.push_back(trace.is_kept(trace.use(unit)));
  trace.end();
  return kept;
}

const auto kAllAway = [](std::size_t) { return true; };

TEST(UseTrace, KeepsWhatIsUsedAgainBeforeTheDistance) {
  // Elements between the uses: of 0: unit 1 and 2; of 1: 2 and 0; of 2: 0 and 1 in the next pass.
  UseTrace trace({10, 20, 30}, {.max_reuse_distance = 50});
  EXPECT_THAT(pass(trace, {0, 1, 2, 0}), ElementsAre(false, false, false, false));  // the record
  // 0: 50 until it is used again; 1: 30 + 10 + 10 until the next pass; 2: 10 + 10 + 20... ; the last 0: at once.
  EXPECT_THAT(pass(trace, {0, 1, 2, 0}), ElementsAre(false, false, true, true));
}

TEST(UseTrace, WalksInACircle) {
  UseTrace trace({1, 1}, {.max_reuse_distance = 1});
  pass(trace, {0, 1});
  EXPECT_THAT(pass(trace, {0, 1}), ElementsAre(false, false));  // one element between, and not less
  UseTrace wider({1, 1}, {.max_reuse_distance = 2});
  pass(wider, {0, 1});
  EXPECT_THAT(pass(wider, {0, 1}), ElementsAre(true, true));
}

TEST(UseTrace, KeepsNothingWithoutADistance) {
  UseTrace trace({1, 1}, {.max_reuse_distance = 0});
  pass(trace, {0, 0, 1});
  EXPECT_THAT(pass(trace, {0, 0, 1}), ElementsAre(false, false, false));
}

TEST(UseTrace, RecordsAnewWhatGoesAnotherWay) {
  UseTrace trace({1, 1, 1}, {.max_reuse_distance = 100});
  pass(trace, {0, 1, 2});
  EXPECT_FALSE(trace.strayed());
  EXPECT_THAT(pass(trace, {0, 2, 1}), ElementsAre(true, true, false));
  EXPECT_TRUE(trace.strayed());
  EXPECT_THAT(pass(trace, {0, 2, 1}), ElementsAre(true, true, true));
  EXPECT_FALSE(trace.strayed());
}

TEST(UseTrace, FollowsAPassThatLeavesUnitsOut) {
  UseTrace trace({10, 10, 10, 10}, {.max_reuse_distance = 1, .prefetch = 20});
  pass(trace, {0, 1, 2, 3, 3, 2, 1, 0});
  trace.begin();
  EXPECT_EQ(trace.use(0), 0u);
  EXPECT_EQ(trace.use(2), 2u);
  EXPECT_EQ(trace.left_out(), std::make_pair(std::size_t{1}, std::size_t{2}));
  EXPECT_EQ(trace.unit_at(1), 1u);
  EXPECT_THAT(trace.ahead(0, kAllAway), ElementsAre(3, 2));
  EXPECT_EQ(trace.use(2), 5u);
  EXPECT_EQ(trace.left_out(), std::make_pair(std::size_t{3}, std::size_t{5}));
  EXPECT_EQ(trace.use(0), 7u);
  trace.end();
  EXPECT_FALSE(trace.strayed());
  trace.begin();
  trace.use(0);
  EXPECT_EQ(trace.left_out().first, trace.left_out().second);
  EXPECT_THAT(trace.ahead(0, kAllAway), ElementsAre(1, 2));  // the record is as it was
}

TEST(UseTrace, MergesPassesThatLeaveOutDifferentUnits) {
  UseTrace trace({1, 1, 1, 1, 1}, {.prefetch = 100});
  pass(trace, {0, 2, 4, 4, 2, 0});
  EXPECT_THAT(pass(trace, {0, 1, 4, 4, 1, 0}), ElementsAre(true, false, false, false, false, false));
  EXPECT_FALSE(trace.strayed());
  pass(trace, {0, 3, 4, 4, 3, 0});
  EXPECT_FALSE(trace.strayed());
  EXPECT_THAT(pass(trace, {0, 1, 2, 3, 4, 4, 3, 2, 1, 0}), testing::Each(true));
}

TEST(UseTrace, KnowsTheWholeOrderOfPassesThatEachLeaveUnitsOut) {
  constexpr std::size_t kUnits = 12;
  std::mt19937 random(5);
  UseTrace trace(std::vector<std::int64_t>(kUnits, 1), {.prefetch = 1000});
  const auto draw = [&] {
    std::vector<std::size_t> uses = {0};
    for (std::size_t unit = 1; unit < kUnits; ++unit) {
      if (unit == kUnits - 1 || random() % 2 == 0) uses.insert(uses.end(), 1 + unit % 3, unit);
    }
    const std::vector<std::size_t> back(uses.rbegin(), uses.rend());
    uses.insert(uses.end(), back.begin(), back.end());
    return uses;
  };
  for (int i = 0; i < 40; ++i) {
    pass(trace, draw());
    EXPECT_FALSE(trace.strayed());
  }
  for (int i = 0; i < 1000; ++i) {
    trace.begin();
    for (const std::size_t unit : draw()) {
      trace.use(unit);
      ASSERT_TRUE(trace.follows());
    }
    trace.end();
  }
  std::vector<std::size_t> whole = {0};
  for (std::size_t unit = 1; unit < kUnits; ++unit) whole.insert(whole.end(), 1 + unit % 3, unit);
  const std::vector<std::size_t> back(whole.rbegin(), whole.rend());
  whole.insert(whole.end(), back.begin(), back.end());
  trace.begin();
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(trace.use(whole[i]), i);
}

TEST(UseTrace, ForgetsWhatIsNotUsedAnyMore) {
  UseTrace trace({1, 1, 1}, {.prefetch = 10});
  pass(trace, {0, 1, 2});
  const auto next = [&] {
    trace.begin();
    trace.use(0);
    return trace.ahead(0, kAllAway);
  };
  for (int i = 0; i < UseTrace::kSettled; ++i) {
    EXPECT_THAT(next(), ElementsAre(1, 2));
    pass(trace, {0, 2});
  }
  EXPECT_FALSE(trace.strayed());
  EXPECT_THAT(next(), ElementsAre(2));
}

TEST(UseTrace, ForgetsAPassThatDidNotEnd) {
  UseTrace trace({1, 1}, {});
  pass(trace, {0, 1});
  trace.begin();
  trace.use(1);
  EXPECT_THAT(pass(trace, {0, 1}), ElementsAre(true, true));
}

TEST(UseTrace, FetchesAheadInTheOrderOfUse) {
  UseTrace trace({10, 10, 10, 10}, {.prefetch = 20});
  trace.begin();
  EXPECT_THAT(trace.ahead(0, kAllAway), IsEmpty());  // nothing is known
  for (const std::size_t unit : {0, 1, 1, 2, 3}) trace.use(unit);
  trace.end();
  trace.begin();
  trace.use(0);
  EXPECT_THAT(trace.ahead(0, kAllAway), ElementsAre(1, 2));
  trace.use(1);
  // 1 is next again and here, 2 is coming: the window is full.
  EXPECT_THAT(trace.ahead(0, [](std::size_t unit) { return unit == 3; }), IsEmpty());
  trace.use(1);
  EXPECT_THAT(trace.ahead(0, [](std::size_t unit) { return unit == 3; }), ElementsAre(3));
}

TEST(UseTrace, WaitsUntilHalfAWindowIsWorthACall) {
  UseTrace trace({8, 1, 1, 1}, {.prefetch = 10});
  pass(trace, {0, 1, 2, 3});
  trace.begin();
  trace.use(0);
  EXPECT_THAT(trace.ahead(0, [](std::size_t unit) { return unit > 1; }), IsEmpty());  // 2 elements, not needed at once
  EXPECT_THAT(trace.ahead(0, kAllAway), ElementsAre(1, 2, 3));                        // the next one is
}

TEST(UseTrace, FetchesNothingAheadBeyondWhatMayLive) {
  UseTrace trace({10, 10, 10}, {.max_live = 25, .prefetch = 100});
  pass(trace, {0, 1, 2});
  trace.begin();
  trace.use(0);
  EXPECT_THAT(trace.ahead(10, kAllAway), ElementsAre(1, 2));  // the last may go beyond, as the peer's may
  EXPECT_THAT(trace.ahead(20, kAllAway), ElementsAre(1));
  EXPECT_THAT(trace.ahead(25, kAllAway), IsEmpty());
}

TEST(UseTrace, FetchesNothingAheadWithoutAWindow) {
  UseTrace trace({1, 1}, {.prefetch = 0});
  pass(trace, {0, 1});
  trace.begin();
  EXPECT_THAT(trace.ahead(0, kAllAway), IsEmpty());
}

}  // namespace
}  // namespace capstan

#include "plugins/compression/weight_quantization/bit_schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

namespace capstan::compression {
namespace {

using ::testing::ElementsAre;

BitSchedule schedule_of(std::vector<BitSchedule::Weight> weights, double change_ratio = 0) {
  return {std::move(weights), change_ratio, &BitSchedule::evenly};
}

/// The bits of weight 0 by the number of updates, 0 to `last`.
std::vector<int> bits_up_to(BitSchedule& schedule, int last, std::int64_t factor = 1) {
  std::vector<int> bits = {schedule.bits(0)};
  for (int n = 1; n <= last; ++n) {
    schedule.advance([factor](std::size_t) { return factor; });
    bits.push_back(schedule.bits(0));
  }
  return bits;
}

TEST(BitSchedule, TakesABitAwayEveryPeriodDownToTheTarget) {
  BitSchedule schedule = schedule_of({{8, 4, 10}});
  const std::vector<int> bits = bits_up_to(schedule, 60);
  const std::map<int, int> golden = {{0, 8},  {9, 8},  {10, 7}, {19, 7}, {20, 6}, {29, 6},
                                     {30, 5}, {39, 5}, {40, 4}, {41, 4}, {60, 4}};
  for (const auto& [n, wanted] : golden) EXPECT_EQ(bits[static_cast<std::size_t>(n)], wanted) << n;
  for (int n = 0; n <= 60; ++n) EXPECT_EQ(bits[static_cast<std::size_t>(n)], std::max(4, 8 - n / 10)) << n;
  EXPECT_EQ(schedule.bits_to_fall(), 0);
}

TEST(BitSchedule, TakesABitEveryUpdateWhereThePeriodIs0WhateverTheFactor) {
  for (const std::int64_t factor : {1, 3}) {
    BitSchedule schedule = schedule_of({{8, 4, 0}});
    EXPECT_THAT(bits_up_to(schedule, 6, factor), ElementsAre(8, 7, 6, 5, 4, 4, 4));
  }
  BitSchedule ahead = schedule_of({{8, 4, 0}, {8, 4, 10}});
  ahead.advance_to(25);
  EXPECT_EQ(ahead.bits(0), 4);
  EXPECT_EQ(ahead.bits(1), 6);
}

TEST(BitSchedule, WaitsAsManyPeriodsAsTheFactorSays) {
  BitSchedule schedule = schedule_of({{8, 4, 10}});
  const std::vector<int> bits = bits_up_to(schedule, 110, 3);
  // The first drop is after a period, those after it after three.
  const std::map<int, int> golden = {{9, 8}, {10, 7}, {39, 7}, {40, 6}, {41, 6}, {69, 6}, {70, 5}, {99, 5}, {100, 4}};
  for (const auto& [n, wanted] : golden) EXPECT_EQ(bits[static_cast<std::size_t>(n)], wanted) << n;
}

TEST(BitSchedule, TellsOfEachDrop) {
  BitSchedule schedule = schedule_of({{8, 7, 2}, {4, 4, 1}, {5, 3, 1}});
  const auto once = [&] { return schedule.advance([](std::size_t weight) { return weight == 2 ? 2 : 1; }); };
  EXPECT_EQ(schedule.bits_to_fall(), 3);
  const auto first = once();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_THAT((std::vector<std::int64_t>{static_cast<std::int64_t>(first[0].weight), first[0].bits, first[0].next}),
              ElementsAre(2, 4, 3));
  EXPECT_EQ(once().size(), 1u);  // weight 0
  EXPECT_EQ(schedule.bits_to_fall(), 1);
  EXPECT_EQ(once().size(), 1u);  // weight 2 again
  EXPECT_EQ(schedule.bits_to_fall(), 0);
}

/// The mixture as the reference has it, line by line.
class PlainMixture {
 public:
  PlainMixture(std::vector<BitSchedule::Weight> weights, double ratio) : weights_(std::move(weights)), ratio_(ratio) {
    for (const auto& weight : weights_) {
      bits_.push_back(weight.start_bits);
      next_.push_back(weight.period);
    }
  }
  std::vector<double> advance() {
    ++n_;
    share_ = std::max(0.0, share_ - ratio_);
    std::vector<double> shares;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (bits_[i] != weights_[i].target_bits && n_ >= next_[i]) {
        share_ = 1;
        next_[i] += weights_[i].period;
        --bits_[i];
      }
      shares.push_back(share_);
    }
    return shares;
  }

 private:
  std::vector<BitSchedule::Weight> weights_;
  double ratio_, share_ = 1;
  std::int64_t n_ = 0;
  std::vector<int> bits_;
  std::vector<std::int64_t> next_;
};

TEST(BitSchedule, MixesLessFromUpdateToUpdateAndAllAgainFromADropOn) {
  const std::vector<BitSchedule::Weight> weights = {{8, 4, 7}, {6, 5, 11}, {8, 2, 5}};
  for (const double ratio : {0.05, 0.001, 0.3, 1.5}) {
    BitSchedule schedule = schedule_of(weights, ratio);
    PlainMixture plain(weights, ratio);
    EXPECT_EQ(schedule.share(0), 1);
    for (int n = 1; n <= 90; ++n) {
      schedule.advance([](std::size_t) { return 1; });
      const std::vector<double> wanted = plain.advance();
      for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(schedule.share(i), wanted[i], 1e-13) << n;
    }
  }
  EXPECT_EQ(schedule_of(weights).share(0), 0);
}

TEST(BitSchedule, GoesToAnUpdateAtOnceAsStepByStep) {
  std::mt19937 random(3);
  for (int run = 0; run < 50; ++run) {
    std::vector<BitSchedule::Weight> weights;
    for (int i = 0; i < 3; ++i) {
      const int target = 1 + static_cast<int>(random() % 4);
      weights.push_back({target + static_cast<int>(random() % 5), target, 1 + static_cast<std::int64_t>(random() % 9)});
    }
    BitSchedule slow = schedule_of(weights, 0.04), fast = schedule_of(weights, 0.04);
    for (const std::int64_t updates : {1, 2, 9, 30, 31}) {
      while (slow.state().updates < updates) slow.advance([](std::size_t) { return 1; });
      fast.advance_to(updates);
      EXPECT_EQ(fast.state().updates, updates);
      EXPECT_EQ(fast.state().bits, slow.state().bits);
      EXPECT_EQ(fast.state().next, slow.state().next);
      for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(fast.share(i), slow.share(i)) << updates;
    }
  }
}

TEST(BitSchedule, ComesToTheEndOfTimeAtOnce) {
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  BitSchedule schedule = schedule_of({{8, 4, 10}, {8, 4, kEnd}, {8, 4, kEnd / 2}}, 0.1);
  schedule.advance_to(kEnd);
  EXPECT_THAT(schedule.state().bits, ElementsAre(4, 7, 5));
  EXPECT_EQ(schedule.state().updates, kEnd);
}

TEST(BitSchedule, GoesOnFromAStateThatWasSaved) {
  const std::vector<BitSchedule::Weight> weights = {{8, 4, 3}, {8, 4, 4}};
  BitSchedule straight = schedule_of(weights, 0.1), resumed = schedule_of(weights, 0.1);
  const auto once = [](BitSchedule& schedule) { schedule.advance([](std::size_t weight) { return weight + 1; }); };
  for (int n = 0; n < 8; ++n) once(straight);
  resumed.set_state(straight.state());
  for (int n = 0; n < 20; ++n) {
    EXPECT_EQ(resumed.share(0), straight.share(0));
    EXPECT_EQ(resumed.share(1), straight.share(1));
    once(straight);
    once(resumed);
    EXPECT_EQ(resumed.state().bits, straight.state().bits);
  }
}

}  // namespace
}  // namespace capstan::compression

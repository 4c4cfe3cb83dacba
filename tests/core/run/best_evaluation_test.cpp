#include "core/run/best_evaluation.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace capstan {
namespace {

TEST(BestEvaluation, CountsThoseThatAreNoLowerThanTheLowest) {
  BestEvaluation best;
  EXPECT_FALSE(best.step());
  EXPECT_FALSE(best.take(10, std::nan("")));
  EXPECT_FALSE(best.step());
  EXPECT_EQ(best.since(), 1);
  EXPECT_TRUE(best.take(20, 3.0));
  EXPECT_EQ(best.since(), 0);
  EXPECT_FALSE(best.take(30, 3.0)) << "an equal loss is not lower";
  EXPECT_FALSE(best.take(40, std::nan("")));
  EXPECT_EQ(best.since(), 2);
  EXPECT_FALSE(best.take(40, 1.0)) << "the same step again";
  EXPECT_EQ(best.since(), 2);
  EXPECT_EQ(best.step(), 20);
  EXPECT_TRUE(best.take(50, -1.0));
  EXPECT_EQ(best.loss(), -1.0);
}

TEST(BestEvaluation, GoesOnFromWhatItSaved) {
  BestEvaluation whole, resumed;
  for (const auto& [step, loss] : {std::pair(1, 2.5), {2, 2.25}, {3, 2.75}}) whole.take(step, loss);
  const Json saved = Json::parse(whole.json().dump());
  resumed.load(&saved);
  EXPECT_EQ(resumed.json(), whole.json());
  for (BestEvaluation* one : {&whole, &resumed}) {
    EXPECT_FALSE(one->take(3, 0.5)) << "evaluated before the save";
    EXPECT_FALSE(one->take(4, 2.25));
    EXPECT_EQ(one->since(), 2);
    EXPECT_EQ(one->step(), 2);
  }
}

TEST(BestEvaluation, BeginsAnewWhereNothingCanBeRead) {
  for (const char* text : {"{}", "[]", "3", R"({"step": "x", "loss": {}})", R"({"since": 1.5, "loss": null})"}) {
    BestEvaluation best;
    best.take(1, 2.0);
    const Json saved = Json::parse(text);
    best.load(&saved);
    EXPECT_FALSE(best.step()) << text;
    EXPECT_EQ(best.since(), 0) << text;
    EXPECT_TRUE(best.take(1, 5.0)) << text;
  }
  BestEvaluation best;
  best.load(nullptr);
  EXPECT_TRUE(best.take(1, 5.0));
}

}  // namespace
}  // namespace capstan

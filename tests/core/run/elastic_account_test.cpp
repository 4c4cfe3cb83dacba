#include "core/run/elastic_account.hpp"

#include <gtest/gtest.h>

namespace capstan {
namespace {

constexpr double kNow = 5000;  // seconds of the run's clock

/// What was kept with a snapshot that was taken so many seconds ago, by a run that began 100 s ago.
Json kept(double seconds_ago) {
  ElasticAccount account;
  account.begun = kNow - 100;
  account.repeated = 1;
  account.regrouping = 2;
  account.waiting = 3;
  return account.json(kNow - seconds_ago);
}

TEST(ElasticAccount, DividesTheTimeSinceTheSnapshotByCause) {
  const ElasticAccount account = ElasticAccount::go_on(kept(20), kNow - 12, 7, kNow);
  EXPECT_DOUBLE_EQ(account.repeated, 1 + 8);    // from the snapshot to the loss
  EXPECT_DOUBLE_EQ(account.waiting, 3 + 7);     // with too few processes
  EXPECT_DOUBLE_EQ(account.regrouping, 2 + 5);  // the rest
  EXPECT_DOUBLE_EQ(account.lost(), 6 + 20);
  EXPECT_DOUBLE_EQ(account.goodput(kNow), 1 - 26.0 / 100);
}

TEST(ElasticAccount, LosesNothingOfStepsThatEndedBeforeAPause) {
  const ElasticAccount account = ElasticAccount::go_on(kept(0), kNow - 5, 0, kNow);
  EXPECT_DOUBLE_EQ(account.repeated, 1);
  EXPECT_DOUBLE_EQ(account.regrouping, 2);
}

TEST(ElasticAccount, LosesNothingNegativeWhereASnapshotSeemsToComeFromTheFuture) {
  const ElasticAccount account = ElasticAccount::go_on(kept(-30), kNow - 5, 0, kNow);
  EXPECT_DOUBLE_EQ(account.lost(), 6);
}

TEST(ElasticAccount, IsOneLine) {
  ElasticAccount account;
  account.begun = kNow - 1000;
  account.repeated = 5;
  account.regrouping = 12.54;
  EXPECT_EQ(account.text(12, kNow), "12 processes lost, 17.5 s lost, goodput 98.2 %");
  EXPECT_EQ(account.text(1, kNow), "1 process lost, 17.5 s lost, goodput 98.2 %");
}

}  // namespace
}  // namespace capstan

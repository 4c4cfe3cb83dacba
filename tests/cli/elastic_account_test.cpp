#include "cli/elastic_account.hpp"

#include <gtest/gtest.h>

#include "core/elastic/world.hpp"

namespace capstan::cli {
namespace {

/// What was kept with a snapshot that was taken so many seconds ago, by a run that began 100 s ago.
Json kept(double seconds_ago) {
  ElasticAccount account;
  account.begun = steady_seconds() - 100;
  account.repeated = 1;
  account.regrouping = 2;
  account.waiting = 3;
  Json json = account.json();
  json["taken"] = steady_seconds() - seconds_ago;
  return json;
}

constexpr double kSlow = 0.5;  // how long the machine may take for what the test does

TEST(ElasticAccount, DividesTheTimeSinceTheSnapshotByCause) {
  const ElasticAccount account = ElasticAccount::go_on(kept(20), steady_seconds() - 12, 7);
  EXPECT_NEAR(account.repeated, 1 + 8, kSlow);    // from the snapshot to the loss
  EXPECT_NEAR(account.waiting, 3 + 7, kSlow);     // with too few processes
  EXPECT_NEAR(account.regrouping, 2 + 5, kSlow);  // the rest
  EXPECT_NEAR(account.lost(), 6 + 20, kSlow);
  EXPECT_NEAR(account.goodput(), 1 - 26.0 / 100, 0.01);
}

TEST(ElasticAccount, LosesNothingOfStepsThatEndedBeforeAPause) {
  const ElasticAccount account = ElasticAccount::go_on(kept(0), steady_seconds() - 5, 0);
  EXPECT_NEAR(account.repeated, 1, kSlow);
  EXPECT_NEAR(account.regrouping, 2, kSlow);
}

TEST(ElasticAccount, IsOneLine) {
  ElasticAccount account;
  account.begun = steady_seconds() - 1000;
  account.repeated = 5;
  account.regrouping = 12.54;
  EXPECT_EQ(account.text(12), "12 losses, 17.5 s lost, goodput 98.2 %");
  EXPECT_EQ(account.text(1), "1 loss, 17.5 s lost, goodput 98.2 %");
}

}  // namespace
}  // namespace capstan::cli

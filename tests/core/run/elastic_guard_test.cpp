#include "core/run/elastic_guard.hpp"

#include <gtest/gtest.h>

#include <future>

namespace capstan {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(ElasticGuard, EndsAProcessThatDoesNotLeaveACollectiveThatIsGivenUp) {
  std::promise<void> ended;
  ElasticGuard guard(milliseconds(1), [&] { ended.set_value(); });
  const ElasticGuard::Generation generation(guard);
  guard.give_up();
  ended.get_future().wait();
}

TEST(ElasticGuard, EndsNoProcessThatLeavesTheGenerationOrIsInNone) {
  int ended = 0;
  {
    ElasticGuard guard(hours(1), [&] { ++ended; });
    const ElasticGuard::Generation generation(guard);
    guard.give_up();
  }
  {
    ElasticGuard guard(milliseconds(1), [&] { ++ended; });
    { const ElasticGuard::Generation generation(guard); }
  }
  EXPECT_EQ(ended, 0);
}

}  // namespace
}  // namespace capstan

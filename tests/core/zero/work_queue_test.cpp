#include "core/zero/work_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

TEST(WorkQueue, BeginsItsThreadBeforeAllWork) {
  std::vector<std::thread::id> ran_on;
  const auto note = [&] { ran_on.push_back(std::this_thread::get_id()); };
  WorkQueue queue(/*threaded=*/true, note);
  queue.submit(note);
  queue.drain();

  ASSERT_EQ(ran_on.size(), 2u);
  EXPECT_EQ(ran_on[0], ran_on[1]);
  EXPECT_NE(ran_on[0], std::this_thread::get_id());
}

TEST(WorkQueue, WithoutAThreadLeavesTheCallersAsItIs) {
  std::vector<int> order;
  WorkQueue queue(/*threaded=*/false, [&] { order.push_back(0); });
  queue.submit([&] { order.push_back(1); });

  EXPECT_THAT(order, ElementsAre(1));
}

TEST(WorkQueue, ThrowsForAllWorkWhatKeptItsThreadFromBeginning) {
  bool ran = false;
  WorkQueue queue(/*threaded=*/true, [] { throw std::runtime_error("there is no such device"); });
  for (int attempt = 0; attempt < 2; ++attempt) {
    queue.submit([&] { ran = true; });
    EXPECT_THAT([&] { queue.drain(); }, ThrowsMessage<std::runtime_error>("there is no such device"));
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace capstan

#include "core/zero/work_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/errors.hpp"

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

/// Streams of a device, by their threads: each is ordered behind the marks in its list.
class Streams {
 public:
  WorkQueue::AfterThis after_this() {
    return [this] {
      const std::lock_guard lock(mutex_);
      const std::string mark =
          (std::this_thread::get_id() == caller_ ? "caller " : "thread ") + std::to_string(++marks_);
      return [this, mark] {
        const std::lock_guard inner(mutex_);
        (std::this_thread::get_id() == caller_ ? caller_is_after : thread_is_after).push_back(mark);
      };
    };
  }
  std::vector<std::string> caller_is_after, thread_is_after;

 private:
  std::mutex mutex_;
  const std::thread::id caller_ = std::this_thread::get_id();
  int marks_ = 0;
};

TEST(WorkQueue, OrdersTheStreamsOfWhoSubmitsAndWhoWaits) {
  Streams streams;
  WorkQueue queue(/*threaded=*/true, {}, streams.after_this());
  std::vector<std::string> when_working;
  const auto first = queue.submit([&] { when_working = streams.thread_is_after; });
  queue.wait(first);
  EXPECT_THAT(when_working, ElementsAre("caller 1"));             // as it was when it submitted
  EXPECT_THAT(streams.caller_is_after, ElementsAre("thread 2"));  // the work's end
  queue.submit([] {});
  queue.drain();
  EXPECT_THAT(streams.thread_is_after, ElementsAre("caller 1", "caller 3"));
  EXPECT_THAT(streams.caller_is_after, ElementsAre("thread 2", "thread 4"));
}

TEST(WorkQueue, OrdersNoStreamWithoutAThread) {
  Streams streams;
  WorkQueue queue(/*threaded=*/false, {}, streams.after_this());
  queue.submit([] {});
  queue.drain();
  EXPECT_TRUE(streams.thread_is_after.empty() && streams.caller_is_after.empty());
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

TEST(WorkQueue, NeverTakesWorkThatFailedOrWasDroppedForDone) {
  bool dropped_ran = false, later_ran = false;
  WorkQueue queue(/*threaded=*/true);
  const auto before = queue.submit([] {});
  const auto failed = queue.submit([] { throw std::runtime_error("the link is cut"); });
  const auto dropped = queue.submit([&] { dropped_ran = true; });
  EXPECT_THAT([&] { queue.drain(); }, ThrowsMessage<std::runtime_error>("the link is cut"));

  const auto later = queue.submit([&] { later_ran = true; });
  queue.wait(later);
  queue.wait(before);
  for (const auto lost : {failed, dropped}) {
    EXPECT_THAT([&] { queue.wait(lost); }, ThrowsMessage<std::runtime_error>("the link is cut"));
  }
  EXPECT_FALSE(dropped_ran);
  EXPECT_TRUE(later_ran);
}

TEST(WorkQueue, TellsWhoWaitsForDiscardedWork) {
  std::promise<void> goes_on;
  bool ran = false;
  WorkQueue queue(/*threaded=*/true);
  queue.submit([&] { goes_on.get_future().wait(); });
  const auto second = queue.submit([&] { ran = true; });
  std::thread discards([&] { queue.discard(); });
  goes_on.set_value();
  discards.join();
  std::string told;
  try {
    queue.wait(second);
  } catch (const RuntimeFault& fault) {
    told = fault.what();
  }
  // Whether the second began before it could be discarded is the scheduler's choice.
  EXPECT_EQ(told,
            ran ? "" : "an exchange between the ranks was dropped before it was done: who asked for it has ended.");
}

}  // namespace
}  // namespace capstan

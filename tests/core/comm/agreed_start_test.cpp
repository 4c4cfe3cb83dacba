// Starts of processes that meet in a store which outlives them, as torchrun's agents keep it.

#include "core/comm/agreed_start.hpp"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

/// Texts that all ranks of a test share. [any thread]
class SharedTexts {
 public:
  AgreedStart::Board board() {
    return {{[this](const std::string& key, const std::string& text) {
               const std::lock_guard lock(mutex_);
               texts_[key] = text;
             },
             [this](const std::string& key) -> std::optional<std::string> {
               const std::lock_guard lock(mutex_);
               const auto found = texts_.find(key);
               return found == texts_.end() ? std::nullopt : std::optional(found->second);
             }},
            [this](const std::string& key) {
              const std::lock_guard lock(mutex_);
              return ++counts_[key];
            }};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::int64_t> counts_;
};

/// The numbers that the ranks of one start take.
std::vector<std::string> start(SharedTexts& texts, int size) {
  std::vector<std::string> numbers(static_cast<std::size_t>(size));
  std::vector<std::thread> others;
  for (int rank = 1; rank < size; ++rank) {
    others.emplace_back([&, rank] {
      const auto number = AgreedStart(texts.board(), rank, size).number(seconds(60));
      numbers[static_cast<std::size_t>(rank)] = number.value_or("none");
      texts.board().tell("here/" + number.value_or("none") + "/" + std::to_string(rank), "");
    });
  }
  AgreedStart first(texts.board(), 0, size);
  numbers[0] = first.number(seconds(0)).value_or("none");
  first.answer(
      [&](int rank) { return texts.board().look("here/" + numbers[0] + "/" + std::to_string(rank)).has_value(); },
      seconds(60));
  for (std::thread& other : others) other.join();
  return numbers;
}

TEST(AgreedStart, IsCountedByRank0) {
  SharedTexts texts;
  EXPECT_EQ(start(texts, 3), std::vector<std::string>(3, "1"));
  EXPECT_EQ(start(texts, 4), std::vector<std::string>(4, "2"));
}

TEST(AgreedStart, IsNotWhatAnEarlierStartLeft) {
  SharedTexts texts;
  EXPECT_EQ(AgreedStart(texts.board(), 1, 2).number(milliseconds(20)), std::nullopt);  // asked, and has ended since
  EXPECT_EQ(AgreedStart(texts.board(), 0, 2).number(seconds(0)), "1");                 // so has this one
  EXPECT_EQ(start(texts, 2), std::vector<std::string>(2, "2"));
}

TEST(AgreedStart, AnswersWhoeverAsksInTheMeantime) {
  SharedTexts texts;
  AgreedStart first(texts.board(), 0, 3);
  const std::string number = *first.number(seconds(0));
  // Rank 1 never arrives; rank 2, which comes after it, is answered all the same.
  std::atomic<bool> answered = false;
  std::thread second([&] {
    EXPECT_EQ(AgreedStart(texts.board(), 2, 3).number(seconds(60)), number);
    answered = true;
  });
  first.answer([&](int) { return answered.load(); }, seconds(60));
  second.join();
}

/// Keeps the texts as an agent of torchrun does.
class Agent {
 public:
  Agent() : store_(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options())) {}
  /// What an agent tells a process that it has started `restarts` times, as it counts.
  std::vector<std::string> environment(int restarts) const {
    return {"MASTER_PORT=" + std::to_string(store_->getPort()), "TORCHELASTIC_USE_AGENT_STORE=True",
            "TORCHELASTIC_RESTART_COUNT=" + std::to_string(restarts)};
  }

 private:
  static c10d::TCPStoreOptions options() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    return options;
  }
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

void exchange(Communicator& communicator) {
  const std::string own = std::to_string(communicator.rank());
  const std::vector<std::string> all = communicator.all_gather_text("ranks", own);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    EXPECT_EQ(all[static_cast<std::size_t>(rank)], std::to_string(rank));
  }
}

TEST(AgentsStore, ServesOneStartAfterAnotherHoweverAgentsCountThem) {
  const Agent agent;
  const auto same = [&](int) { return agent.environment(0); };
  const auto differing = [&](int rank) { return agent.environment(rank); };
  const auto late = [&](int rank) {
    auto environment = agent.environment(0);
    if (rank == 0) environment.push_back("CAPSTAN_TEST_LATE=1");
    return environment;
  };
  const auto wait = [](int) {
    if (getenv("CAPSTAN_TEST_LATE") != nullptr) std::this_thread::sleep_for(seconds(1));
  };
  test::expect_on_ranks(2, exchange, {.arrival = seconds(30), .environment = same, .before = wait});
  test::expect_on_ranks(2, exchange, {.arrival = seconds(30), .environment = late, .before = wait});
  test::expect_on_ranks(3, exchange, {.arrival = seconds(30), .environment = differing, .before = wait});
}

TEST(AgentsStore, SaysWhoHasNotAppeared) {
  const Agent agent;
  const auto first_is_gone = [](int rank) {
    if (rank == 0) _Exit(7);
  };
  const auto results = test::run_ranks(
      2, exchange,
      {.arrival = seconds(1), .environment = [&](int) { return agent.environment(0); }, .before = first_is_gone});
  EXPECT_EQ(results[1].exit_code, 3);
  EXPECT_THAT(results[1].err, HasSubstr("rank 0 of 2 has not appeared at 127.0.0.1:"));
}

TEST(AgentsStore, SaysWhichOfTheOthersHasNotAppeared) {
  const Agent agent;
  const auto last_is_gone = [](int rank) {
    if (rank == 2) _Exit(7);
  };
  const auto results = test::run_ranks(
      3, exchange,
      {.arrival = seconds(1), .environment = [&](int) { return agent.environment(0); }, .before = last_is_gone});
  for (const std::size_t rank : {0u, 1u}) {
    EXPECT_EQ(results[rank].exit_code, 3);
    EXPECT_THAT(results[rank].err, HasSubstr("rank 2 of 3 has not appeared at 127.0.0.1:")) << rank;
  }
}

}  // namespace
}  // namespace capstan

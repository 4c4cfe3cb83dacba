#include "core/comm/communicator.hpp"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/comm/port_file.hpp"
#include "core/errors.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan {
namespace {

using testing::HasSubstr;

/// What rank `from` holds for rank `to`: the same wherever it is asked for.
at::Tensor values_of(int from, int to, std::int64_t count, at::ScalarType type) {
  at::manual_seed(static_cast<std::uint64_t>(from * 100 + to));
  return at::rand({count}).mul(1000).sub(500).to(type);
}

std::int64_t count_of(int rank) { return rank == 1 ? 0 : 1000 + 13 * rank; }

TEST(Communicator, GathersPartsOfAnySizeInPlace) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < 3; ++rank) {
      parts.push_back(rank == communicator.rank() ? values_of(rank, 0, count_of(rank), at::kFloat)
                                                  : at::zeros({count_of(rank)}));
    }
    communicator.all_gather("test", parts);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(at::equal(parts[static_cast<std::size_t>(rank)], values_of(rank, 0, count_of(rank), at::kFloat)));
    }
  });
}

TEST(Communicator, HasGroupsThatCallTogether) {
  test::expect_on_ranks(4, [](Communicator& communicator) {
    // 0 and 2, 1 alone, 3 alone; then 3 with 0 and 1.
    const int rank = communicator.rank();
    const std::vector<int> even = {0, 2}, other = {rank};
    const auto group = communicator.group(rank % 2 == 0 ? even : other);
    EXPECT_EQ(group->size(), rank % 2 == 0 ? 2 : 1);
    EXPECT_EQ(group->rank(), rank == 2 ? 1 : 0);
    at::Tensor sum = at::full({3 + rank % 2}, rank + 1.0);
    group->all_reduce_exact("sum", sum);
    EXPECT_EQ(sum[0].item<double>(), rank % 2 == 0 ? 4 : rank + 1);
    // Calls of all ranks go on beside those of groups.
    EXPECT_EQ(communicator.all_gather_text("text", std::to_string(rank))[3], "3");
    const auto three = communicator.group(rank == 2 ? std::vector<int>{2} : std::vector<int>{0, 1, 3});
    EXPECT_EQ(three->all_gather_text("names", std::to_string(rank)),
              rank == 2 ? std::vector<std::string>{"2"} : (std::vector<std::string>{"0", "1", "3"}));
    // A group of a group.
    const auto own = three->group({three->rank()});
    EXPECT_EQ(own->all_gather_text("own", "x").size(), 1u);
  });
}

TEST(Communicator, GathersManyPiecesOfAnySizeInOneCall) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    std::vector<std::vector<at::Tensor>> pieces;
    const auto count = [](int piece, int rank) { return std::int64_t{1} + (piece * 7919 + rank * 104'729) % 5000; };
    for (int piece = 0; piece < 50; ++piece) {
      auto& parts = pieces.emplace_back();
      for (int rank = 0; rank < 3; ++rank) {
        const at::Tensor values = at::full({count(piece, rank)}, 100.0 * piece + rank);
        parts.push_back(rank == communicator.rank() ? values : at::zeros_like(values));
      }
    }
    communicator.all_gather("pieces", pieces);
    for (int piece = 0; piece < 50; ++piece) {
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_TRUE(at::equal(pieces[static_cast<std::size_t>(piece)][static_cast<std::size_t>(rank)],
                              at::full({count(piece, rank)}, 100.0 * piece + rank)));
      }
    }
  });
}

TEST(Communicator, SumsInRankOrderInFp32) {
  test::expect_on_ranks(4, [](Communicator& communicator) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      std::vector<at::Tensor> parts;
      for (int to = 0; to < 4; ++to) parts.push_back(values_of(communicator.rank(), to, count_of(to), type));
      const at::Tensor sum = communicator.reduce_scatter("test", parts);
      at::Tensor expected = values_of(0, communicator.rank(), count_of(communicator.rank()), type).to(at::kFloat);
      for (int from = 1; from < 4; ++from) {
        expected =
            expected.add(values_of(from, communicator.rank(), count_of(communicator.rank()), type).to(at::kFloat));
      }
      EXPECT_EQ(sum.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(sum, expected)) << c10::toString(type);
    }
  });
}

TEST(Communicator, ExchangesAllToAllAndBroadcasts) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    std::vector<at::Tensor> send, receive;
    for (int rank = 0; rank < 3; ++rank) {
      send.push_back(values_of(communicator.rank(), rank, 5 + rank, at::kFloat));
      receive.push_back(at::zeros({5 + communicator.rank()}));
    }
    communicator.all_to_all("exchange", send, receive);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(at::equal(receive[static_cast<std::size_t>(rank)],
                            values_of(rank, communicator.rank(), 5 + communicator.rank(), at::kFloat)));
    }
    const at::Tensor told = at::full({4}, static_cast<double>(communicator.rank()));
    const at::Tensor also = at::full({70'000}, 10.0 + communicator.rank());
    communicator.broadcast("tell", {told, also}, 2);
    EXPECT_TRUE(at::equal(told, at::full({4}, 2.0)));
    EXPECT_TRUE(at::equal(also, at::full({70'000}, 12.0)));
  });
}

TEST(Communicator, GathersTexts) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    const std::string mine(static_cast<std::size_t>(communicator.rank()), 'x');
    EXPECT_THAT(communicator.all_gather_text("texts", mine), testing::ElementsAre("", "x", "xx"));
  });
}

TEST(Communicator, AllReducesInRankOrderAndRoundsToTheType) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const auto of_rank = [&](int rank) { return values_of(rank, 7, 1001, type); };
      const at::Tensor values = of_rank(communicator.rank());
      communicator.all_reduce("sum", {values.narrow(0, 0, 400), values.narrow(0, 400, 0), values.narrow(0, 400, 601)},
                              0.5);
      at::Tensor expected = of_rank(0).to(at::kFloat);
      for (int rank = 1; rank < 3; ++rank) expected = expected.add(of_rank(rank).to(at::kFloat));
      EXPECT_TRUE(at::equal(values, expected.mul(0.5).to(type))) << c10::toString(type);
    }
    const at::Tensor exact = at::full({2, 2}, 1e-17 + communicator.rank(), at::kDouble);
    communicator.all_reduce_exact("sum", exact);
    EXPECT_TRUE(at::equal(exact, at::full({2, 2}, (1e-17 + 0.0) + (1e-17 + 1.0) + (1e-17 + 2.0), at::kDouble)));
  });
}

CommsLoggerConfig recording_all() {
  CommsLoggerConfig config;
  config.enabled = config.debug = true;
  return config;
}

void some_collectives(Communicator& communicator) {
  const at::Tensor values = at::zeros({3 * 256});
  const std::vector<at::Tensor> parts = values.split(256);
  for (int i = 0; i < 2; ++i) communicator.all_reduce("sum", parts);
  communicator.all_gather("gather", parts);
  communicator.reduce_scatter("scatter", parts);
  communicator.all_to_all("exchange", parts, values.clone().split(256));
  communicator.broadcast("tell", {values}, 1);
}

TEST(Communicator, RecordsEachCollectiveWithTheSizeOfItsTensor) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    communicator.log().configure(recording_all(), nullptr);
    some_collectives(communicator);
    const CommsSummary summary = communicator.comms_summary(/*stragglers=*/true);
    std::vector<std::string> rows;
    for (const CommsRow& row : summary.rows) {
      rows.push_back(row.op + " " + std::to_string(row.bytes) + " x" + std::to_string(row.count));
      EXPECT_GT(row.comm_ms, 0);
      EXPECT_GE(row.straggler_ms, 0);
      EXPECT_NEAR(row.comm_ms + row.straggler_ms, row.total_ms, 1e-6 * row.total_ms);
    }
    const std::string caller = " | [Caller Func: some_collectives] ";
    EXPECT_THAT(rows, testing::ElementsAre("all_reduce" + caller + "3072 x2", "all_gather" + caller + "1024 x1",
                                           "reduce_scatter" + caller + "1024 x1",
                                           "all_to_all_single" + caller + "3072 x1", "broadcast" + caller + "3072 x1"));
    // The comparison is no part of it, and what makes up an all-reduce counts once.
    EXPECT_EQ(communicator.log().recorded_calls(), 6u);
    const auto& traffic = communicator.log().traffic();
    EXPECT_EQ(traffic.at("all_reduce").calls, 2u);
    EXPECT_EQ(traffic.at("all_reduce").bytes, 2u * (2 * 1024 + 2 * 1024));
    EXPECT_EQ(traffic.at("broadcast").bytes, communicator.rank() == 1 ? 2u * 3072 : 0u);
    EXPECT_EQ(traffic.count("all_gather_object"), 0u);
  });
}

TEST(Communicator, ComparesEachCallWithTheFastestRank) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    communicator.log().record_all(true);
    for (int i = 0; i < 3; ++i) communicator.all_gather("gather", at::zeros({3}).split(1));
    const CommsRow row = communicator.comms_summary(true).rows.at(0);
    const std::vector<double> own = communicator.log().times();
    double fastest = 0, beyond = 0;
    for (int i = 0; i < 3; ++i) {
      const double mine = own[static_cast<std::size_t>(i)];
      double least = mine;
      for (const std::string& text : communicator.all_gather_text("times", std::to_string(mine))) {
        least = std::min(least, std::stod(text));
      }
      fastest += least;
      beyond += mine - least;
    }
    EXPECT_NEAR(row.comm_ms, fastest, 1e-5);
    EXPECT_NEAR(row.straggler_ms, beyond, 1e-5);
  });
}

TEST(Communicator, RefusesToCompareDifferentRecords) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    communicator.log().record_all(true);
    communicator.all_gather_text("one", "");
    if (communicator.rank() == 1) communicator.log().reset();
    communicator.comms_summary(true);
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("comms_summary: rank 0 has recorded 1 calls and rank 1 0, so they cannot be "
                                      "compared. Start, stop and reset the log on all ranks alike."));
  }
}

TEST(Communicator, OfOneProcessKeepsWhatItHas) {
  const auto alone = Communicator::alone();
  EXPECT_EQ(alone->size(), 1);
  const at::Tensor half = at::full({3}, 0.5, at::kHalf);
  EXPECT_TRUE(at::equal(alone->reduce_scatter("sum", {half}), at::full({3}, 0.5, at::kFloat)));
  EXPECT_THAT(alone->all_gather_text("texts", "me"), testing::ElementsAre("me"));
}

/// What a rank's exception said; it ended with it.
void expect_stopped(const ProcessResult& result, const std::vector<std::string>& texts) {
  EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
  for (const std::string& text : texts) EXPECT_THAT(result.err, HasSubstr(text));
}

TEST(Communicator, NamesBothCallsWhenRanksCallDifferentOnes) {
  // The time-out is far away: this is noticed at once.
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    const at::Tensor values = at::zeros({10});
    communicator.broadcast("first", {values}, 0);
    communicator.broadcast(communicator.rank() == 0 ? "step 3, norm" : "save_checkpoint global_step3", {values}, 1);
    communicator.broadcast("never", {values}, 0);
  });
  expect_stopped(results[0], {"rank 0: collective 'step 3, norm' failed: rank 1 "});
  EXPECT_NE(results[1].exit_code, 0);
}

TEST(Communicator, NamesTheShapesThatDiffer) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    const at::Tensor values = at::zeros({10 + communicator.rank()});
    communicator.all_gather("sizes", {values, values});
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(results[rank].exit_code, 3);
  }
  EXPECT_THAT(results[0].err + results[1].err, HasSubstr("their tensors differ in shape"));
}

TEST(Communicator, TellsTheSentenceOfARankThatStops) {
  const auto results = test::run_ranks(3, [](Communicator& communicator) {
    const at::Tensor values = at::zeros({1000});
    communicator.all_gather("first", {values, values.clone(), values.clone()});
    if (communicator.rank() == 2) {
      communicator.tell_failure("the disk is full.");
      throw RuntimeFault("the disk is full.");
    }
    communicator.all_gather("second", {values, values.clone(), values.clone()});
  });
  for (const int rank : {0, 1}) {
    expect_stopped(
        results[static_cast<std::size_t>(rank)],
        {"rank " + std::to_string(rank) + ": collective 'second' failed: rank 2 stopped: the disk is full."});
  }
}

TEST(Communicator, NamesARankThatWasKilled) {
  const auto results = test::run_ranks(3, [](Communicator& communicator) {
    const at::Tensor values = at::zeros({1000});
    communicator.all_gather("first", {values, values.clone(), values.clone()});
    if (communicator.rank() == 1) kill(getpid(), SIGKILL);
    communicator.all_gather("second", {values, values.clone(), values.clone()});
  });
  EXPECT_EQ(results[1].signal, SIGKILL);
  EXPECT_THAT(results[0].err + results[2].err, HasSubstr("collective 'second' failed: rank 1 is gone ("));
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_EQ(results[2].exit_code, 3);
}

TEST(Communicator, SaysWhoIsWhereWhenTheTimeIsUp) {
  const auto results =
      test::run_ranks(2,
                      [](Communicator& communicator) {
                        const at::Tensor values = at::zeros({256});
                        const auto processes = communicator.all_gather_text("step 7, pids", std::to_string(getpid()));
                        // Rank 1 neither comes to the next collective nor goes away.
                        while (communicator.rank() == 1) pause();
                        try {
                          communicator.all_gather("step 7, norm", {values, values.clone()});
                        } catch (const RuntimeFault&) {
                          kill(static_cast<pid_t>(std::stol(processes[1])), SIGKILL);
                          throw;
                        }
                      },
                      {.timeout = std::chrono::milliseconds(500), .watch_every = std::chrono::milliseconds(50)});
  expect_stopped(results[0], {"rank 0: collective 'step 7, norm' failed: it did not end within 0.5 s.\n"
                              "  rank 0  is in 'step 7, norm' (call 3, 2.05 kB) for ",
                              "\n  rank 1  computes for ", "; its last was 'step 7, pids' (call 2, "});
}

TEST(Communicator, EndsACollectiveThatIsGivenUpThoughTheOtherRankIsThere) {
  TemporaryFolder folder;
  std::atomic<bool> given_up = false, ended = false;
  const auto connect = [&](int rank) {
    Rendezvous rendezvous;
    rendezvous.rank = rank;
    rendezvous.size = 2;
    rendezvous.address = "127.0.0.1";
    rendezvous.port_file = (folder / "port").string();
    rendezvous.passing = true;
    Communicator::Options options;
    options.watch_every = std::chrono::milliseconds(20);
    options.lingers = false;
    options.given_up = [&] { return given_up.load(); };
    return Communicator::connect(rendezvous, options);
  };
  std::thread other([&] {
    const auto communicator = connect(1);
    communicator->all_gather_text("first", "1");
    given_up = true;
    while (!ended) std::this_thread::yield();
  });
  const auto communicator = connect(0);
  communicator->all_gather_text("first", "0");
  std::string why;
  try {
    communicator->all_gather_text("second", "0");
  } catch (const PeerFault& fault) {
    why = fault.what();
  }
  ended = true;
  other.join();
  EXPECT_EQ(why, "rank 0: collective 'second, lengths' failed: it was given up.");
}

TEST(Communicator, DoesNotLookOnForRank0OfAStartThatIsGivenUp) {
  TemporaryFolder folder;
  const int port = free_port();
  PortFile told((folder / "port").string());
  told.write({port, "a secret"});
  Rendezvous rendezvous;
  rendezvous.rank = 1;
  rendezvous.size = 2;
  rendezvous.address = "127.0.0.1";
  rendezvous.port_file = (folder / "port").string();
  rendezvous.passing = true;
  rendezvous.given_up = [asked = 0]() mutable { return ++asked > 2; };
  EXPECT_THAT([&] { Communicator::connect(rendezvous, {.arrival = std::chrono::hours(1)}); },
              ::testing::ThrowsMessage<RuntimeFault>("rank 1: nobody listens at 127.0.0.1:" + std::to_string(port) +
                                                     ", where rank 0 was."));
}

}  // namespace
}  // namespace capstan

// How processes meet, what they say when not all of them come, and that they meet again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "core/comm/attendance.hpp"
#include "core/comm/device_link.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/comm/time_limits.hpp"
#include "core/errors.hpp"
#include "tests/support/ranks.hpp"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

/// Texts that all ranks of a test share.
class Board {
 public:
  Attendance of(int rank, int size) {
    return {{[this](const std::string& key, const std::string& text) { texts_[key] = text; },
             [this](const std::string& key) -> std::optional<std::string> {
               const auto found = texts_.find(key);
               return found == texts_.end() ? std::nullopt : std::optional(found->second);
             }},
            rank,
            size};
  }

 private:
  std::map<std::string, std::string> texts_;
};

TEST(Attendance, SaysHowFarEachProcessHasCome) {
  Board board;
  board.of(0, 4).arrived();
  board.of(1, 4).connected();
  board.of(3, 4).stopped("the disk is full.");
  EXPECT_EQ(board.of(0, 4).table(),
            "\n  rank 0  has arrived\n  rank 1  has connected\n  rank 2  has not appeared"
            "\n  rank 3  stopped: the disk is full.");
}

TEST(Attendance, TellsWhoIsThereFromWhoHasGone) {
  Board board;
  for (const int rank : {0, 1, 2}) board.of(rank, 3).arrived();
  board.of(1, 3).table_of_answers(milliseconds(0));
  EXPECT_EQ(board.of(0, 3).table_of_answers(milliseconds(0)),
            "\n  rank 0  has arrived and waits for the others\n  rank 1  has arrived and waits for the others"
            "\n  rank 2  has arrived and does not answer any more");
}

TEST(Attendance, SaysThatRank0WhichKeepsItIsGone) {
  Attendance attendance({[](const std::string&, const std::string&) { throw RuntimeFault("gone"); },
                         [](const std::string&) -> std::optional<std::string> { throw RuntimeFault("gone"); }},
                        1, 2);
  EXPECT_THAT(attendance.table_of_answers(seconds(60)),
              HasSubstr("\n  rank 0  cannot be asked: rank 0, which would know, is gone"));
}

TEST(Attendance, StopsWhoWaitsForAProcessThatHasStopped) {
  Board board;
  board.of(0, 2).arrived();
  EXPECT_NO_THROW(board.of(0, 2).check());
  board.of(1, 2).stopped("no network.");
  EXPECT_THAT([&] { board.of(0, 2).check(); }, ThrowsMessage<RuntimeFault>("rank 0: rank 1 of 2 stopped: no network."));
}

TEST(TimeLimits, AreThoseOfTheEnvironment) {
  const auto limits = [](const char* seconds) {
    return time_limits([seconds](const char* name) -> std::optional<std::string> {
      return std::string(name) == "CAPSTAN_COLLECTIVE_TIMEOUT" && seconds ? std::optional<std::string>(seconds)
                                                                          : std::nullopt;
    });
  };
  EXPECT_EQ(limits(nullptr).timeout, std::chrono::minutes(30));
  EXPECT_EQ(limits(nullptr).arrival, std::chrono::minutes(5));
  EXPECT_EQ(limits("2.5").timeout, milliseconds(2500));
  EXPECT_EQ(limits("2.5").arrival, milliseconds(2500));
  EXPECT_THAT([&] { limits("soon"); },
              ThrowsMessage<RuntimeFault>("CAPSTAN_COLLECTIVE_TIMEOUT is 'soon'; a number of seconds above 0 is "
                                          "needed."));
}

/// The process ends at once where it calls this.
void die_at(long call) {
  sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(rules), rules};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(Start, EndsWithATableWhenARankDiesBetweenArrivingAndConnecting) {
  // To connect, a process listens; rank 2 has met the others by then.
  const auto results = test::run_ranks(3, [](Communicator&) {}, {.arrival = seconds(3), .before = [](int rank) {
                                                                   if (rank == 2) die_at(SYS_listen);
                                                                 }});
  EXPECT_EQ(results[2].signal, SIGSYS);
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_EQ(results[1].exit_code, 3);
  EXPECT_THAT(results[0].err, HasSubstr("rank 0: cannot connect to the other processes: "));
  EXPECT_THAT(results[0].err, HasSubstr("\n  rank 0  has arrived and waits for the others"
                                        "\n  rank 1  has arrived and waits for the others"
                                        "\n  rank 2  has arrived and does not answer any more"));
  for (const int rank : {0, 1}) EXPECT_THAT(results[static_cast<std::size_t>(rank)].err, Not(HasSubstr("frame #")));
}

TEST(Start, NamesARankThatDoesNotAppear) {
  const auto results = test::run_ranks(2, [](Communicator&) {}, {.arrival = seconds(1), .before = [](int rank) {
                                                                   if (rank == 1) _Exit(7);
                                                                 }});
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_THAT(results[0].err, testing::ContainsRegex("^rank 1 of 2 has not appeared at 127.0.0.1:[0-9]+ within 1 s. "
                                                     "Was it started, and did it fail at once\\?"
                                                     "\n  rank 0  has arrived\n  rank 1  has not appeared\n$"));
}

TEST(Start, NamesARankThatHasNoNetwork) {
  const auto results = test::run_ranks(2, [](Communicator&) {}, {.arrival = seconds(3), .before = [](int rank) {
                                                                   if (rank == 1)
                                                                     setenv("GLOO_SOCKET_IFNAME", "nowhere0", 1);
                                                                 }});
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_EQ(results[1].exit_code, 3);
  EXPECT_THAT(results[1].err, HasSubstr("rank 1: no network to connect over: "));
  EXPECT_THAT(results[1].err, HasSubstr("GLOO_SOCKET_IFNAME names the network interface to use."));
  // In the table of who came, or alone where rank 0 had come further.
  EXPECT_THAT(results[0].err, testing::ContainsRegex("rank 1 (of 2)? ?stopped: no network to connect over: "));
}

TEST(Start, ConnectsTheSameProcessesAgainAndAgain) {
  test::expect_on_ranks(3, [](Communicator& first) {
    for (int i = 0; i < 3; ++i) {
      const auto again = Communicator::connect(read_rendezvous(process_environment()), {});
      EXPECT_EQ(again->all_gather_text("names", std::to_string(again->rank() + 10 * i)).at(2),
                std::to_string(2 + 10 * i));
    }
    EXPECT_EQ(first.all_gather_text("names", "x").size(), 3u);
  });
}

TEST(Start, LeavesNothingOfC10dInFrontOfTheSentenceWhenRank0IsKilled) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    communicator.all_gather_text("first", "");
    if (communicator.rank() == 0) kill(getpid(), SIGKILL);
    communicator.all_gather_text("second", "");
  });
  EXPECT_EQ(results[1].exit_code, 3);
  EXPECT_THAT(results[1].err, testing::StartsWith("rank 1: collective 'second, lengths' failed: rank 0 is gone ("));
  EXPECT_THAT(results[1].err, Not(HasSubstr("c10d")));
}

TEST(Start, SaysInItsOwnWordsAloneWhereTheProcessesCannotMeet) {
  // A port that is taken, and at which nobody listens.
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length), 0);
  Rendezvous place;
  place.size = 2;
  place.address = "127.0.0.1";
  place.port = ntohs(address.sin_port);
  const std::string where = "127.0.0.1:" + std::to_string(place.port);
  const auto meet_as = [&](int rank) {
    place.rank = rank;
    Communicator::connect(place, {.arrival = milliseconds(500)});
  };
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { meet_as(1); },
              ThrowsMessage<RuntimeFault>(HasSubstr("rank 1: cannot reach rank 0 at " + where +
                                                    ". Has it started, and is the address right? MASTER_ADDR and "
                                                    "MASTER_PORT say where.")));
  EXPECT_THAT([&] { meet_as(0); },
              ThrowsMessage<RuntimeFault>(HasSubstr("rank 0: cannot listen at " + where + ". Is the port taken? ")));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  close(taken);
}

/// Links over which nothing travels.
class CountedLinks final : public DeviceLinks {
 public:
  std::string new_id() override { return "id"; }
  std::unique_ptr<DeviceLink> connect(const std::string& id, int, int, const std::function<bool()>&) override {
    EXPECT_EQ(id, "id");
    ++connected;
    return nullptr;
  }
  int connected = 0;
};

TEST(DeviceLinksOfEnginesInARow, AreOneAndOfOneKind) {
  test::expect_on_ranks(2, [](Communicator& communicator) {
    CountedLinks links;
    for (int engine = 0; engine < 3; ++engine) communicator.connect_devices(&links, at::kCUDA);
    EXPECT_EQ(links.connected, 1);
    EXPECT_EQ(communicator.all_gather_text("names", "x").size(), 2u);
    EXPECT_THAT([&] { communicator.connect_devices(&links, at::kXPU); },
                ThrowsMessage<RuntimeFault>(
                    HasSubstr("the processes' link is between devices of type 'cuda', and this engine is on 'xpu'. It "
                              "needs a communicator of its own.")));
  });
}

TEST(Failure, IsToBeSaidOnceWhereRank0StopsWithTheSameWords) {
  test::expect_on_ranks(3, [](Communicator& communicator) {
    const std::string why = communicator.rank() == 2 ? "another file is missing." : "the file is missing.";
    EXPECT_EQ(communicator.tell_failure_as_rank_0(why, seconds(60)), communicator.rank() == 1);
  });
}

TEST(Hurry, EndsACollectiveThatHasNotEndedInTime) {
  const auto results = test::run_ranks(2, [](Communicator& communicator) {
    const auto processes = communicator.all_gather_text("pids", std::to_string(getpid()));
    while (communicator.rank() == 1) pause();
    try {
      const Communicator::Hurry hurry(communicator, milliseconds(200));
      communicator.all_gather_text("farewell", "");
    } catch (const RuntimeFault&) {
      kill(static_cast<pid_t>(std::stol(processes[1])), SIGKILL);
      throw;
    }
  });
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_THAT(results[0].err, HasSubstr("collective 'farewell, lengths' failed: it did not end before this rank did."));
}

}  // namespace
}  // namespace capstan

// Who trains with whom, as a launcher of one host decides it: by a clock, a system and processes of the test's own.

#include "core/elastic/launcher/processes.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "core/elastic/launcher/host.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/core/elastic/launcher/played_system.hpp"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using test::PlayedSystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Launcher : public ::testing::Test {
 protected:
  Launcher() {
    plan_.sizes = {1, 2, 3};
    plan_.most = 3;
    plan_.processes = 3;
    plan_.wait = seconds(600);
  }
  /// Runs the launch to its end. Returns its exit code, and keeps what it has logged.
  int run() {
    ::testing::internal::CaptureStderr();
    int code = -1;
    {
      ElasticHost host(plan_, system_, folder_);
      code = ElasticProcesses(plan_, host, nullptr).run().value();
      last_ = folder_.read();
    }
    log_ = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(system_.is_over()) << log_;
    return code;
  }
  void then_interrupt(std::function<bool()> condition) {
    system_.when(std::move(condition), [this] { system_.signal(SIGTERM); });
  }
  void kill_rank(std::size_t rank) { system_.end(system_.process_of_rank(rank), SIGKILL); }

  test::TemporaryFolder place_;
  const WorldFolder folder_ = WorldFolder::create("a launch", place_.path());
  PlayedSystem system_{folder_};
  ElasticPlan plan_;
  World last_;
  std::string log_;
};

TEST_F(Launcher, BeginsOnceAllProcessesAreReadyHoweverLateOneIs) {
  system_.loads[2] = seconds(30);
  system_.when([&] { return folder_.is_ready(1); }, [] {});
  system_.when(system_.after(seconds(28)), [&] { EXPECT_EQ(system_.world().generation, 0); });
  system_.when(system_.train(3), [&] {
    EXPECT_EQ(system_.world().generation, 1);
    EXPECT_THAT(system_.world().members, ElementsAre(0, 1, 2));
  });
  then_interrupt(system_.after(seconds(1)));
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(last_.generation, 1);
  EXPECT_EQ(last_.losses, 0);
}

TEST_F(Launcher, GivesTheRankOfALostProcessToASpareAndStartsAnother) {
  plan_.spares = 1;
  system_.when(system_.train(3), [&] { EXPECT_EQ(system_.started(), 4U); });
  system_.when([&] { return folder_.is_ready(3); }, [&] { kill_rank(1); });
  system_.when(system_.train(3), [&] {
    EXPECT_THAT(system_.world().members, ElementsAre(0, 3, 2));
    EXPECT_EQ(system_.world().change, "rank 1 (process 5000001) was killed by SIGKILL");
  });
  then_interrupt([&] { return folder_.is_ready(4); });
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(last_.losses, 1);
  EXPECT_EQ(system_.started(), 5U);
  EXPECT_THAT(log_,
              HasSubstr("launch: rank 1 (process 5000001) was killed by SIGKILL; 3 processes go on (generation 2)."));
}

TEST_F(Launcher, GoesOnAtOnceWithoutTwoThatAreLostTogetherAndGrowsAgain) {
  system_.when(system_.train(3), [&] {
    kill_rank(2);
    kill_rank(0);
  });
  system_.when(system_.train(1), [&] {
    EXPECT_EQ(system_.world().generation, 2);
    EXPECT_THAT(system_.world().members, ElementsAre(1));
    EXPECT_THAT(system_.world().change, HasSubstr("was killed by SIGKILL"));
  });
  system_.when(system_.train(3), [&] { EXPECT_EQ(system_.world().members.front(), 1); });
  then_interrupt([] { return true; });
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(last_.losses, 2);
}

TEST_F(Launcher, DoesTheLastStepsAgainWhereRankZeroIsLostAsTheOthersHaveEnded) {
  plan_.sizes = {3};
  system_.when(system_.train(3), [&] {
    system_.end(system_.process_of_rank(0), SIGSEGV);
    for (const std::size_t rank : {1U, 2U}) system_.end(system_.process_of_rank(rank), 0);
  });
  system_.when(system_.train(3), [&] {
    EXPECT_THAT(system_.world().change, HasSubstr("rank 0 (process 5000000) was killed by SIGSEGV"));
    EXPECT_THAT(system_.world().members, ElementsAre(3, 4, 5));
    for (const std::size_t rank : {1U, 2U, 0U}) system_.end(system_.process_of_rank(rank), 0);
  });
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(last_.losses, 1);
}

TEST_F(Launcher, StartsNothingAnewWhereAProgramEndsWellWithoutTraining) {
  system_.ends_at_start = 0;
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(system_.started(), 3U);
}

TEST_F(Launcher, LeavesJoinersWaitingUntilMinTimeHasPassed) {
  plan_.processes = 2;
  plan_.min_time = minutes(5);
  system_.when(system_.train(2), [&] { system_.signal(SIGUSR1); });
  system_.when([&] { return folder_.is_ready(2); }, [] {});
  system_.when(system_.after(minutes(4)), [&] {
    EXPECT_EQ(system_.world().generation, 1);
    EXPECT_EQ(system_.world().wish, "");
  });
  system_.when(system_.after(minutes(1)), [] {});
  system_.when(system_.train(3), [&] { EXPECT_EQ(system_.world().change, "process 5000002 has joined"); });
  then_interrupt([] { return true; });
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(last_.generation, 2);
}

TEST_F(Launcher, RefusesMoreProcessesThanMayTrain) {
  system_.when(system_.train(3), [&] { system_.signal(SIGUSR1); });
  then_interrupt(system_.after(seconds(10)));
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(system_.started(), 3U);
}

TEST_F(Launcher, WaitsForEnoughProcessesAndEndsWhenNoneCome) {
  plan_.sizes = {2, 3};
  plan_.processes = 2;
  system_.when(system_.train(2), [&] {
    system_.loads[2] = minutes(60);
    kill_rank(0);
  });
  system_.when(system_.after(seconds(599)), [&] {
    EXPECT_EQ(system_.world().generation, 2);
    EXPECT_THAT(system_.world().members, ElementsAre());
    EXPECT_EQ(system_.world().end, "");
  });
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(log_, HasSubstr("1 process is left where at least 2 are needed: the run waits for more."));
  EXPECT_THAT(log_, HasSubstr("1 process is left where at least 2 are needed, and there were no more within 600 s "
                              "(capstan.elastic.wait)."));
}

TEST_F(Launcher, StartsNoMoreOnceThreeInARowHaveEndedBeforeTheyCouldJoin) {
  plan_.sizes = {2, 3};
  system_.ends_at_start = W_EXITCODE(3, 0);
  EXPECT_EQ(run(), 1);
  EXPECT_EQ(system_.living(), 0U);
  EXPECT_THAT(log_, HasSubstr("3 processes in a row ended before they could join. No more are started."));
}

TEST_F(Launcher, EndsARunThatComesNoFartherInTwentyAttempts) {
  plan_.processes = 1;
  plan_.spares = 1;
  system_.when(system_.train(1), [&] { system_.trains = false; });
  std::int64_t killed = 0;
  // The first attempt has done a step.
  for (int attempt = 0; attempt < 21; ++attempt) {
    system_.when([&] { return !system_.world().members.empty() && system_.world().generation > killed; },
                 [&] {
                   killed = system_.world().generation;
                   kill_rank(0);
                 });
  }
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(log_,
              HasSubstr("the run has not come farther than step 1 in 20 attempts; the last ended because rank 0 "));
}

TEST_F(Launcher, CountsAProcessThatStaysStoppedForThreeSecondsAsLost) {
  pid_t stopped = 0;
  system_.when(system_.train(3), [&] { system_.stop(stopped = system_.process_of_rank(2)); });
  system_.when(system_.after(milliseconds(2900)), [&] { EXPECT_TRUE(system_.lives(stopped)); });
  system_.when(system_.after(milliseconds(200)), [&] { EXPECT_FALSE(system_.lives(stopped)); });
  system_.when(system_.train(3), [] {});
  then_interrupt([] { return true; });
  EXPECT_EQ(run(), 130);
  EXPECT_THAT(log_, HasSubstr("has been stopped for 3 s: it counts as lost, and is ended."));
  EXPECT_EQ(last_.losses, 1);
}

TEST_F(Launcher, EndsWithTheErrorOfAMemberAndHasAnotherOneSave) {
  plan_.saves = true;
  system_.when(system_.train(3), [&] { system_.end(system_.process_of_rank(1), W_EXITCODE(4, 0)); });
  EXPECT_EQ(run(), 4);
  EXPECT_TRUE(last_.saver == 0 || last_.saver == 2) << last_.saver;
  EXPECT_EQ(last_.losses, 0);
  EXPECT_THAT(log_, HasSubstr("rank 1 (process 5000001) ended with exit code 4; the others are ended."));
}

TEST_F(Launcher, EndsProcessesThatHangKindlyFirst) {
  pid_t hangs = 0;
  system_.when(system_.train(3), [&] {
    system_.hang(hangs = system_.process_of_rank(2));
    system_.end(system_.process_of_rank(1), W_EXITCODE(1, 0));
  });
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(system_.signals_of(hangs), ElementsAre(SIGTERM, SIGKILL));
}

TEST_F(Launcher, GoesOnWithoutAProcessThatIsAskedToLeaveAndCountsNoLoss) {
  system_.when(system_.train(3), [&] { system_.send(system_.process_of_rank(0), SIGTERM); });
  system_.when(system_.train(2), [&] { EXPECT_THAT(system_.world().members, ElementsAre(1, 2)); });
  then_interrupt(system_.after(seconds(5)));
  EXPECT_EQ(run(), 130);
  EXPECT_EQ(last_.losses, 0);
  EXPECT_EQ(system_.started(), 3U);  // nobody takes the place of one that leaves
}

/// Whatever happens, and in whatever order: members live and are ready when a generation begins, each process that goes
/// on keeps its place before those that come anew, and as many train as can and may.
TEST_F(Launcher, DecidesAsItShouldInRandomSchedules) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
    test::TemporaryFolder place;
    const WorldFolder folder = WorldFolder::create("a launch", place.path());
    PlayedSystem system(folder);
    ElasticPlan plan;
    plan.most = 2 + draw(5);
    for (std::int64_t size = 1 + draw(2); size <= plan.most; size += 1 + draw(2)) plan.sizes.push_back(size);
    plan.processes = plan.sizes.back();
    plan.spares = draw(3);
    plan.wait = std::chrono::hours(10);
    for (std::int64_t number = 0; number < 100; ++number) system.loads[number] = milliseconds(20 * draw(200));
    World before;
    const auto check = [&] {
      const World now = system.world();
      if (now.generation == before.generation || !now.end.empty()) return;
      EXPECT_GT(now.generation, before.generation);
      std::size_t able = 0;
      for (std::size_t number = 0; number < system.started(); ++number) {
        able +=
            folder.is_ready(static_cast<std::int64_t>(number)) && system.lives(5'000'000 + static_cast<pid_t>(number));
      }
      std::int64_t size = 0;
      for (const std::int64_t one : plan.sizes) size = one <= static_cast<std::int64_t>(able) ? one : size;
      EXPECT_LE(static_cast<std::int64_t>(now.members.size()), size);
      EXPECT_TRUE(now.members.empty() || std::count(plan.sizes.begin(), plan.sizes.end(), now.members.size()) == 1);
      std::vector<std::int64_t> stay;
      for (const std::int64_t one : before.members) {
        if (std::count(now.members.begin(), now.members.end(), one) > 0) stay.push_back(one);
      }
      std::size_t found = 0;
      for (const std::int64_t one : now.members) found += found < stay.size() && one == stay[found];
      EXPECT_EQ(found, stay.size()) << "those that go on have changed their order";
      for (const std::int64_t one : now.members) EXPECT_TRUE(folder.is_ready(one)) << one;
      if (!now.members.empty()) before = now;
    };
    const auto always = [&](std::function<bool()> condition) {
      return [&check, condition = std::move(condition)] {
        check();
        return condition();
      };
    };
    for (int event = 0; event < 20; ++event) {
      system.when(always(system.after(milliseconds(20 * draw(300)))), [&] {
        const World world = system.world();
        if (world.members.empty()) return;
        for (int kills = 1 + draw(2); kills > 0; --kills) {
          const auto process = static_cast<pid_t>(
              world.processes[static_cast<std::size_t>(draw(static_cast<int>(world.processes.size())))]);
          if (system.lives(process)) system.end(process, SIGKILL);
        }
      });
    }
    // At last all are there again.
    system.when(always(system.train(static_cast<std::size_t>(plan.sizes.back()))), [&] { system.signal(SIGTERM); });
    ::testing::internal::CaptureStderr();
    int code = -1;
    {
      ElasticHost host(plan, system, folder);
      code = ElasticProcesses(plan, host, nullptr).run().value();
    }
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_EQ(code, 130) << log;
    ASSERT_TRUE(system.is_over()) << log;
  }
}

}  // namespace
}  // namespace capstan

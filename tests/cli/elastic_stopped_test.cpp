// Processes of an elastic launch that stand still for a while: they count as lost, or harm nothing when they wake.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/elastic_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

using ElasticStopped = Elastic;

bool is_stopped(pid_t process) {
  std::string facts;
  std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), facts);
  const std::size_t name_ends = facts.rfind(')');
  return name_ends != std::string::npos && facts.compare(name_ends, 3, ") T") == 0;
}

TEST_F(ElasticStopped, AllMembersAtOnceAreLostAndSparesGoOn) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "2"}, train("stopped", kEndless));
  ASSERT_TRUE(run.await_waiting(2));
  ASSERT_TRUE(run.await(10));
  for (const std::size_t rank : {0, 1}) ASSERT_NE(run.kill_rank(rank, SIGSTOP), 0);
  ASSERT_TRUE(run.await(0, 2));
  const ProcessResult result = end_and_compare(run, "stopped", "2");
  EXPECT_THAT(result.out, HasSubstr("2 processes lost, "));
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(result.err, ContainsRegex(std::string("rank ") + rank +
                                          " \\(process [0-9]+\\) has been stopped for 3 s: it counts as lost, and is "
                                          "ended."));
  }
}

TEST_F(ElasticStopped, ThatWakesInTimeGoesOnAndLosesNothing) {
  ElasticRun run(folder_, {"--elastic", "2:2", "--spares", "1"}, train("stopped", kEndless));
  ASSERT_TRUE(run.await_waiting(1));
  ASSERT_TRUE(run.await(10));
  const pid_t sleeper = run.kill_rank(0, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return is_stopped(sleeper); }));
  kill(sleeper, SIGCONT);
  ASSERT_TRUE(run.await(run.step() + 10));
  EXPECT_EQ(run.world()->generation, 1);
  // And one that sleeps while its generation ends: it finds out where it belongs.
  run.kill_rank(0, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return is_stopped(sleeper); }));
  run.kill_rank(1);
  ASSERT_TRUE(eventually([&] { return run.world()->generation == 2; }));
  kill(sleeper, SIGCONT);
  ASSERT_TRUE(run.await(0, 2));
  EXPECT_EQ(run.world()->processes.at(0), sleeper);
  EXPECT_THAT(end_and_compare(run, "stopped", "2").out, HasSubstr("1 process lost, "));
}

TEST_F(ElasticStopped, ThatWakesWithoutItsLauncherSavesWithTheOthersAndEnds) {
  ElasticRun run(folder_, {"--elastic", "2:2"}, train("stopped", kEndless));
  ASSERT_TRUE(run.await(10));
  const World world = *run.world();
  const pid_t sleeper = run.kill_rank(1, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return is_stopped(sleeper); }));
  run.send(SIGKILL);
  ASSERT_TRUE(eventually([&] { return run.has_ended(); }));
  kill(sleeper, SIGCONT);
  for (const std::int64_t process : world.processes) {
    EXPECT_TRUE(eventually([&] { return kill(static_cast<pid_t>(process), 0) != 0; })) << process;
  }
  ASSERT_TRUE(std::filesystem::exists(folder_ / "stopped-ck/latest"));
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_NE(WorldFolder::launcher_of(entry.path()), run.launcher()) << entry.path();
  }
  const int steps = std::atoi(read_bytes(folder_ / "stopped-ck/latest").c_str() + 11);
  const ProcessResult result = run.wait();
  expect_each_sample_once("stopped", result.out, steps);
  ElasticRun straight(folder_, {"--elastic", "2:2"}, train("straight", steps));
  EXPECT_EQ(straight.wait().exit_code, 0);
  EXPECT_EQ(values_saved("stopped", steps), values_saved("straight", steps));
}

}  // namespace
}  // namespace capstan::cli

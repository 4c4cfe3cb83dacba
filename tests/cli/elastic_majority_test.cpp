// Which hosts of an elastic launch train on after a host stood still, was lost, or a link was reset: a majority, in one
// run.

#include <memory>

#include "tests/cli/elastic_hosts_fixture.hpp"
#include "tests/support/firewall.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class ElasticMajority : public ElasticHosts {
 protected:
  ~ElasticMajority() override { unsetenv("CAPSTAN_RDZV_SECRET"); }
  void await_status(const std::string& text) const {
    EXPECT_TRUE(eventually([&] {
      return run_process({kCapstan, "launch", "--status", "--rdzv", here()}).out.find(text) != std::string::npos;
    }));
  }
  static std::vector<std::string> names_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    std::error_code gone;
    for (std::filesystem::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
      names.push_back(entry->path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  /// Whether something is being written into the checkpoint folder.
  bool saves_at_this_moment(const std::string& log) const {
    const auto folder = folder_ / (log + "-ck");
    for (const std::string& name : names_in(folder)) {
      if (name.starts_with(".run-") && !names_in(folder / name).empty()) return true;
    }
    return false;
  }
};

TEST_F(ElasticMajority, AreOneRunAgainAfterOneThatFollowsHasStoodStill) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  ASSERT_TRUE(first.await(first.step() + 10));
  stop_host(second);
  ASSERT_TRUE(first.await_members(1));
  wake_host(second);
  ASSERT_TRUE(first.await_members(2));
  const End end = end_all("log", {&first, &second});
  EXPECT_THAT(end.err, HasSubstr("nothing was heard of it for 5 s"));
  EXPECT_THAT(end.err, HasSubstr("launch: with two hosts the run goes on when host 1 ("));
  EXPECT_THAT(end.err, HasSubstr("A third launcher is enough to tell them apart: the same command with -n 0 on any "
                                 "machine, which needs no GPU, data or shared folder."));
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticMajority, AreOneRunAgainAfterTheOneThatLeadsHasStoodStill) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  ASSERT_TRUE(first.await(first.step() + 10));
  stop_host(first);
  ASSERT_TRUE(
      second.await_output("of the 2 hosts of the run this one reaches 0 others, which is not a majority: this "
                          "host trains nothing and waits 600 s for the others (capstan.elastic.wait)."));
  const std::int64_t step = second.step();
  EXPECT_TRUE(second.world()->members.empty());
  wake_host(first);
  ASSERT_TRUE(second.await(step + 1));
  ASSERT_TRUE(first.await_members(2));
  const End end = end_all("log", {&first, &second});
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticMajority, AreOneRunAgainAfterTheLinkBetweenThemWasReset) {
  const std::vector<std::string> words = train("log", kEndless);
  setenv("CAPSTAN_RDZV_SECRET", "the secret of this test, longer than 32 characters", 1);
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  Firewall firewall(port_);
  ElasticRun second(folder_, launch("1:2", 1, "127.0.0.1:" + std::to_string(firewall.port())), words);
  ASSERT_TRUE(first.await_members(2));
  ASSERT_TRUE(first.await(first.step() + 10));
  const std::int64_t generation = first.world()->generation;
  firewall.reset();
  ASSERT_TRUE(first.await(0, generation + 1));
  ASSERT_TRUE(first.await_members(2));
  const End end = end_all("log", {&first, &second});
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticMajority, WithAWitnessGoOnWhereTheOneThatLeadsIsKilled) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:2", 1, here()), words), witness(folder_, launch("1:2", 0, here()), words);
  ASSERT_TRUE(first.await_members(2));
  await_status("3 hosts");
  ASSERT_TRUE(first.await(first.step() + 10));
  kill_host(first);
  ASSERT_TRUE(second.await(0, first.world()->generation + 1));
  second.send(SIGTERM);
  const ProcessResult result = second.wait(), other = witness.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(other.exit_code, 130) << other.err;
  const int step = std::atoi(read_bytes(folder_ / "log-ck/latest").c_str() + std::string("global_step").size());
  expect_each_sample_once("log", first.wait().out + result.out, step);
}

TEST_F(ElasticMajority, GoOnWithoutTheWitnessThatHasBegunTheRun) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun witness(folder_, launch("1:2", 0, here()), words);
  await_leader();
  ElasticRun first(folder_, launch("1:2", 1, here()), words), second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  EXPECT_EQ(processes_of(witness.launcher()), std::vector<pid_t>());
  const std::string votes = first.world()->votes;
  witness.send(SIGKILL);
  ASSERT_TRUE(eventually([&] { return first.world()->votes != votes; }));
  ASSERT_TRUE(first.await(first.step() + 10));
  const End end = end_all("log", {&first, &second});
  EXPECT_THAT(end.err, HasSubstr("the launcher that led the run is gone. This one, on"));
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticMajority, OfThreeGoOnInOneRunWhicheverStandsStillInASaveOrInAChange) {
  const std::vector<std::string> words = train("log", kEndless, {"--save-every", "3", "--keep", "2"});
  ElasticRun first(folder_, launch("1:3", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:3", 1, here()), words), third(folder_, launch("1:3", 1, here()), words);
  ASSERT_TRUE(first.await_members(3));
  ASSERT_TRUE(eventually([&] { return saves_at_this_moment("log"); }));
  stop_host(first);
  ASSERT_TRUE(second.await_members(2));
  wake_host(first);
  ASSERT_TRUE(second.await_members(3));
  const std::int64_t generation = second.world()->generation;
  second.kill_rank(1);
  ASSERT_TRUE(eventually([&] { return second.world()->generation > generation; }));
  stop_host(second);  // it leads by now
  ASSERT_TRUE(first.await_members(2));
  wake_host(second);
  ASSERT_TRUE(first.await_members(3));
  const End end = end_all("log", {&first, &second, &third});
  EXPECT_THAT(end.err, HasSubstr("the launcher that led the run is gone. This one, on"));
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticMajority, OfTwoWaitsWhereTheOneThatLeadsIsLostAndSavesNothing) {
  const std::vector<std::string> words = train("log", kEndless, {"--set", "capstan.elastic.wait=1"});
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  kill_host(first);
  const ProcessResult result = second.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("launch: of the 2 hosts of the run this one reaches 0 others, and no others came "
                                    "back within 1 s (capstan.elastic.wait). The run may go on without this host, "
                                    "which ends here and saves nothing, so that there are not two runs."));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "log-ck"));
}

TEST_F(ElasticMajority, ThatWakesAfterTheRunHasEndedSavesNothing) {
  const std::vector<std::string> words =
      train("log", kEndless, {"--set", "capstan.elastic.wait=1", "--save-every", "5"});
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  stop_host(second);
  ASSERT_TRUE(first.await_members(1));
  const End end = end_all("log", {&first});
  const auto saved = names_in(folder_ / "log-ck");
  wake_host(second);
  const ProcessResult result = second.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("which ends here and saves nothing, so that there are not two runs."));
  EXPECT_EQ(names_in(folder_ / "log-ck"), saved);
  EXPECT_EQ(read_bytes(folder_ / "log-ck/latest"), "global_step" + std::to_string(end.step));
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticMajority, SaysWhatIsWrongWithTheVotesThatALaunchHasLeft) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:1", 1, here()), words);
  ASSERT_TRUE(first.await(3));
  World left = *first.world();
  left.votes = R"({"number": 0, "key": 1, "record": {}})";
  const auto file = first.folder()->path() / "world.json";
  kill_host(first);
  first.wait();
  write_bytes(file, left.json().dump());
  ElasticRun again(folder_, launch("1:1", 1, here()), words);
  const ProcessResult result = again.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, ContainsRegex("launch: '.*/world.json', which a launch before this one has left, does not "
                                        "tell which hosts made up its run \\(.*\\). The folder is removed: launch "
                                        "again to begin anew, or with --resume."));
}

TEST_F(ElasticMajority, TrainsOnWhereItsWitnessDiesAndWarnsOfTwoHosts) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun witness(folder_, launch("1:2", 0, here()), words);
  await_status("2 hosts");
  ElasticRun second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  await_status("3 hosts");
  const std::int64_t generation = first.world()->generation;
  witness.send(SIGKILL);
  await_status("2 hosts");
  ASSERT_TRUE(first.await(first.step() + 10));
  EXPECT_EQ(first.world()->generation, generation);
  const End end = end_all("log", {&first, &second});
  EXPECT_THAT(end.err, HasSubstr(" is gone.\n"));
  EXPECT_THAT(end.err, HasSubstr("launch: with two hosts the run goes on when host 2 ("));
  expect_each_sample_once("log", end.out, end.step);
}

}  // namespace
}  // namespace capstan::cli

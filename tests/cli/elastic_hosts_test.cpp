// Elastic launches over several hosts: launchers that find together over the network, as processes of this host or each
// in a network namespace of its own.

#include <initializer_list>
#include <memory>

#include "tests/cli/elastic_hosts_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST_F(ElasticHosts, TrainTogetherAndReplaceAHostThatIsKilled) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("2:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("2:2", 1, here()), words);
  ASSERT_TRUE(first.await(20));
  EXPECT_TRUE(first.world()->spans_hosts());
  ElasticRun third(folder_, launch("2:2", 1, here()), words);
  ASSERT_TRUE(eventually([&] {
    const auto folder = third.folder();
    return folder && folder->is_ready(2);
  }));
  ASSERT_TRUE(first.await(first.step() + 20));
  kill_host(second);
  ASSERT_TRUE(first.await(first.step() + 10, 2));
  const End end = end_all("log", {&first, &third});
  EXPECT_THAT(end.err, ContainsRegex("is gone \\(rank 1\\); 2 processes go on \\(generation 2\\)"));
  expect_each_sample_once("log", end.out, end.step);
  expect_equal_to_one_host("log", end.step, "2");
}

TEST_F(ElasticHosts, GoOnWhereTheOneThatLeadsIsKilled) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:3", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:3", 1, here()), words), third(folder_, launch("1:3", 1, here()), words);
  ASSERT_TRUE(first.await_members(3));
  ASSERT_TRUE(first.await(first.step() + 10));
  const std::vector<pid_t> survivors = processes_of(third.launcher());
  kill_host(first);
  ASSERT_TRUE(second.await(0, 2));
  EXPECT_EQ(processes_of(third.launcher()), survivors);
  // Whoever comes anew asks any of them.
  const World world = *second.world();
  EXPECT_EQ(world.members.size(), 2U);
  const End end = end_all("log", {&second, &third});
  EXPECT_THAT(end.err, HasSubstr("the launcher that led the run is gone. This one, on"));
  EXPECT_THAT(end.err, ContainsRegex("rank 0 went with a host that was lost; 2 processes go on \\(generation 2\\)"));
  expect_each_sample_once("log", end.out + first.wait().out, end.step);
}

TEST_F(ElasticHosts, LeaveWithoutALossWhereTheirLaunchersAreAskedTo) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:3", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:3", 1, here()), words), third(folder_, launch("1:3", 1, here()), words);
  ASSERT_TRUE(first.await_members(3));
  second.send(SIGTERM);
  EXPECT_EQ(second.wait().exit_code, 130);
  ASSERT_TRUE(first.await_members(2));
  first.send(SIGTERM);  // it leads
  const ProcessResult left = first.wait();
  EXPECT_EQ(left.exit_code, 130) << left.err;
  EXPECT_THAT(left.err, HasSubstr("this host has left the run; the launcher of another one leads from here on."));
  ASSERT_TRUE(third.await_members(1));
  const End end = end_all("log", {&third});
  EXPECT_THAT(end.out, HasSubstr("0 processes lost, "));
  expect_each_sample_once("log", left.out + end.out, end.step);
}

// Without copies a host alone has its part of the state, and what has replaced its process is not ready at once.
TEST_F(ElasticHosts, WaitForTheHostThatHasTheStateWhereItsProcessIsReplaced) {
  const std::vector<std::string> words = train("log", kEndless, {"--set", "capstan.elastic.partners=0"});
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  ASSERT_TRUE(first.await(first.step() + 20));
  const std::int64_t step = first.step(), generation = first.world()->generation;
  for (const pid_t process : processes_of(second.launcher())) kill(process, SIGKILL);
  ASSERT_TRUE(eventually([&] { return first.world()->generation > generation; }));
  ASSERT_TRUE(first.await_members(2));
  EXPECT_GT(first.step(), step - 2 * 7);  // at most a snapshot's steps, and those while one is written, are done again
  const End end = end_all("log", {&first, &second});
  EXPECT_THAT(end.err, HasSubstr(" was not found; the processes that are left have no snapshot as new as that of other "
                                 "hosts: the run waits for more."));
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticHosts, EndAndSaveWhereAllMembersLeaveAndWhoIsLeftHasNoState) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("2:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("2:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  ElasticRun third(folder_, launch("2:2", 1, here()), words);
  ASSERT_TRUE(eventually([&] {
    const auto folder = third.folder();
    return folder && folder->is_ready(2);
  }));
  ASSERT_TRUE(first.await(first.step() + 10));
  const std::int64_t step = first.step();
  // They wake with the signal, and so leave after the same step.
  for (const int signal : {SIGSTOP, SIGTERM, SIGCONT}) {
    for (std::size_t rank = 0; rank < 2; ++rank) first.kill_rank(rank, signal);
  }
  for (ElasticRun* run : {&first, &second, &third}) {
    ASSERT_TRUE(eventually([&] { return run->has_ended(); }));
    EXPECT_EQ(run->wait().exit_code, 130);
  }
  EXPECT_GE(std::atoi(read_bytes(folder_ / "log-ck/latest").c_str() + std::string("global_step").size()), step);
}

TEST_F(ElasticHosts, SaveTogetherWhereTooFewAreLeft) {
  const std::vector<std::string> words = train("log", kEndless, {"--set", "capstan.elastic.wait=0"});
  ElasticRun first(folder_, launch("3:3", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("3:3", 1, here()), words), third(folder_, launch("3:3", 1, here()), words);
  ASSERT_TRUE(first.await(20));
  kill_host(third);  // each of the others has a part that the other one lacks
  const ProcessResult result = first.wait(), other = second.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(other.exit_code, 1) << other.err;
  EXPECT_THAT(result.err + other.err, ContainsRegex("the run ends after step [0-9,]+ of 1,000,000. Continue with "
                                                    "--resume log-ck:"));
  ElasticRun again(folder_, {"--elastic", "3:3"}, train("log", kEndless, {"--resume", "log-ck"}));
  ASSERT_TRUE(again.await(21));
  again.send(SIGTERM);
  EXPECT_EQ(again.wait().exit_code, 130);
}

TEST_F(ElasticHosts, GoOnInAnotherLaunchWhereAllOfOneWereKilled) {
  const std::vector<std::string> words = train("log", kEndless);
  std::string out;
  {
    ElasticRun first(folder_, launch("2:2", 1, here()), words), second(folder_, launch("2:2", 1, here()), words);
    ASSERT_TRUE(first.await(20));
    for (const ElasticRun* run : {&first, &second}) run->send(SIGSTOP);
    for (const ElasticRun* run : {&first, &second}) kill_host(*run);
    out = first.wait().out + second.wait().out;
  }
  ElasticRun first(folder_, launch("2:2", 1, here()), words), second(folder_, launch("2:2", 1, here()), words);
  ASSERT_TRUE(first.await(21, 2));
  const End end = end_all("log", {&first, &second});
  EXPECT_THAT(end.out, ContainsRegex("generation 2: 2 processes go on from step [1-9][0-9]* "));
  expect_each_sample_once("log", out + end.out, end.step);
  expect_equal_to_one_host("log", end.step, "2");
}

TEST_F(ElasticHosts, RefuseAnotherConfigurationAndWhatIsNoLauncherAndTellTheirStatus) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await(3));
  // Of launchers on one host the first makes a secret, which only this user may read.
  const auto shown = first.folder()->path() / "rendezvous";
  EXPECT_EQ(std::filesystem::status(shown).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const std::string entry = read_bytes(shown);
  const std::string secret = entry.substr(entry.find(' ') + 1, 32);
  EXPECT_THAT(entry, MatchesRegex(std::to_string(port_) + " [0-9a-f]+\n"));
  run_process({"/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$0; echo '{\"hello\": 3}' >&3; echo GET / >&3; cat <&3",
               std::to_string(port_)});
  ElasticRun other(folder_, launch("1:2", 1, here()), train("other", kEndless));
  const ProcessResult refused = other.wait();
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("launch: this launch is not the one that runs: the command line and the "
                                     "configuration differ. Use the same program, configuration and arguments on "
                                     "every host."));
  ElasticRun second(folder_, launch("1:2", 1, here()), words);
  ASSERT_TRUE(first.await_members(2));
  const ProcessResult status = run_process({kCapstan, "launch", "--status", "--rdzv", here()});
  EXPECT_THAT(status.out,
              ContainsRegex("launch .*: generation [0-9]+, 2 processes train; step [0-9]+ .* s ago; 0 processes lost"));
  EXPECT_THAT(status.out, ContainsRegex("  rank 1  process [0-9]+  .* \\(127.0.0.1\\)"));
  const End end = end_all("log", {&first, &second});
  EXPECT_THAT(end.out + end.err + refused.err + status.out, Not(HasSubstr(secret)));
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticHosts, SayWhatIsWrongWithTheirArguments) {
  const auto says = [](std::vector<std::string> words) {
    words.insert(words.begin(), {kCapstan, "launch"});
    const ProcessResult result = run_process(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  const std::vector<std::string> command = {"train", "--config", "x.json"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), command.begin(), command.end());
    return words;
  };
  EXPECT_THAT(says(with({"--elastic", "1:2", "--rdzv", "node1", "-n", "1"})),
              HasSubstr("--rdzv: HOST:PORT, or several of these between commas, for instance node1:29400, got node1."));
  EXPECT_THAT(says(with({"--elastic", "1:2", "--rdzv", "node1:70000", "-n", "1"})), HasSubstr("got node1:70000."));
  EXPECT_THAT(says(with({"--elastic", "1:2", "--rdzv", "node1:29400"})),
              HasSubstr("launch: --rdzv needs -n, the number of processes on this host"));
  const std::string witness =
      "-n: 1 to 1024 processes, got 0. A launcher without processes, which only decides with those of other hosts "
      "which of them go on, needs --elastic and --rdzv.";
  EXPECT_THAT(says(with({"-n", "0"})), HasSubstr(witness));
  EXPECT_THAT(says(with({"--elastic", "1:2", "-n", "0"})), HasSubstr(witness));
  EXPECT_THAT(says(with({"-n", "1", "--rdzv", "node1:29400"})),
              HasSubstr("launch: --rdzv has no effect without --elastic."));
  EXPECT_THAT(run_process({kCapstan, "launch", "--status", "--rdzv", here()}).err,
              ContainsRegex("launch: nobody answers at 127.0.0.1:[0-9]+ \\(Connection refused\\)."));
}

class ElasticNamespaces : public ElasticHosts {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can make network namespaces";
    if (!hosts_.made()) GTEST_SKIP() << "network namespaces cannot be made here";
  }
  std::string meeting() const { return hosts_.address(0) + ":29400," + hosts_.address(1) + ":29400"; }
  Namespaces hosts_{3};
};

TEST_F(ElasticNamespaces, GoOnFromPartnerCopiesWhereAWholeHostIsKilled) {
  const std::vector<std::string> words = train("log", kEndless, {"--set", "zero_optimization.stage=2"});
  ElasticRun first(folder_, launch("2:4", 2, meeting()), words, hosts_.start(0));
  auto second = std::make_unique<ElasticRun>(folder_, launch("2:4", 2, meeting()), words, hosts_.start(1));
  ASSERT_TRUE(first.await_members(4));
  ASSERT_TRUE(first.await(first.step() + 20));
  const std::int64_t before = first.step();
  kill_host(*second);
  const std::string out = second->wait().out;
  ASSERT_TRUE(first.await(before, 2));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "log-ck"));  // nothing of disk was there to be read
  // The host comes back with the words that it was started with, and joins those that have gone on.
  second = std::make_unique<ElasticRun>(folder_, launch("2:4", 2, meeting()), words, hosts_.start(1));
  ASSERT_TRUE(first.await_members(4));
  const End end = end_all("log", {&first, second.get()});
  EXPECT_THAT(out + end.out, ContainsRegex("generation 2: 2 processes go on from step [1-9][0-9,]"));
  expect_each_sample_once("log", out + end.out, end.step);
}

TEST_F(ElasticNamespaces, GoOnTogetherWhereConnectionsOfTheirRanksAreReset) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:2", 1, meeting()), words, hosts_.start(0));
  ElasticRun second(folder_, launch("1:2", 1, meeting()), words, hosts_.start(1));
  ASSERT_TRUE(first.await_members(2));
  ASSERT_TRUE(first.await(first.step() + 10));
  const std::int64_t generation = first.world()->generation;
  ASSERT_TRUE(hosts_.reset_ranks(0, 1));
  ASSERT_TRUE(first.await(0, generation + 1));
  ASSERT_TRUE(first.await_members(2));
  const End end = end_all("log", {&first, &second});
  // Gloo's own thread raises where it writes into a connection in the moment in which the kernel takes it away, and
  // ends the process: then the launcher starts another one.
  if (end.err.find("'gloo::IoException'") == std::string::npos) {
    EXPECT_THAT(end.err, ContainsRegex("launch: processes lost their connection \\(rank [01]: collective .* failed: .*"
                                       "\\); 2 processes go on \\(generation "));
    EXPECT_THAT(end.out, HasSubstr("0 processes lost, "));
  } else {
    EXPECT_THAT(end.err, ContainsRegex("has joined; 2 processes go on \\(generation "));
    EXPECT_THAT(end.out, ContainsRegex("[12] processe?s? lost, "));
  }
  expect_each_sample_once("log", end.out, end.step);
}

TEST_F(ElasticNamespaces, EndWhereTheyAreCutOffAndGoOnWhereMostAre) {
  const std::vector<std::string> words = train("log", kEndless, {"--set", "capstan.elastic.wait=3"});
  ElasticRun first(folder_, launch("1:3", 1, meeting()), words, hosts_.start(0));
  ElasticRun second(folder_, launch("1:3", 1, meeting()), words, hosts_.start(1));
  ElasticRun third(folder_, launch("1:3", 1, meeting()), words, hosts_.start(2));
  ASSERT_TRUE(first.await_members(3));
  ASSERT_TRUE(first.await(first.step() + 10));
  hosts_.cut_off(2);
  const ProcessResult cut = third.wait();
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("launch: of the 3 hosts of the run this one reaches 0 others, and no others came back "
                                 "within 3 s (capstan.elastic.wait). The run may go on without this host, which ends "
                                 "here and saves nothing, so that there are not two runs."));
  ASSERT_TRUE(first.await_members(2));
  const End end = end_all("log", {&first, &second});
  EXPECT_THAT(end.err, ContainsRegex("is gone: nothing was heard of it for 5 s \\(rank [0-2]\\); 2 processes go on"));
}

}  // namespace
}  // namespace capstan::cli

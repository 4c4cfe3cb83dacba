// Elastic launches over several hosts: launchers that find together over the network, as processes of this host or each
// in a network namespace of its own.

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/cli/elastic_fixture.hpp"
#include "tests/support/free_port.hpp"

namespace capstan::cli {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class ElasticHosts : public Elastic {
 protected:
  std::vector<std::string> launch(const std::string& sizes, int processes, const std::string& rdzv) const {
    return {"--elastic", sizes, "-n", std::to_string(processes), "--rdzv", rdzv};
  }
  std::string here() const { return "127.0.0.1:" + std::to_string(port_); }

  /// Until somebody leads who can be called there.
  void await_leader() const {
    EXPECT_TRUE(eventually([&] {
      return run_process({kCapstan, "launch", "--status", "--rdzv", here()}).exit_code == 0;
    }));
  }

  /// Kills the launcher and all processes of its host at once, as the loss of the host does.
  static void kill_host(const ElasticRun& run) {
    run.send(SIGSTOP);  // so that it replaces nobody
    for (const pid_t process : processes_of(run.launcher())) kill(process, SIGKILL);
    run.send(SIGKILL);
  }
  static std::vector<pid_t> processes_of(pid_t launcher) {
    std::vector<pid_t> found;
    std::ifstream children("/proc/" + std::to_string(launcher) + "/task/" + std::to_string(launcher) + "/children");
    for (pid_t process = 0; children >> process;) found.push_back(process);
    return found;
  }

  /// A host stands still, as a machine that is moved or suspended, and wakes.
  static void stop_host(const ElasticRun& run) {
    run.send(SIGSTOP);
    for (const pid_t process : processes_of(run.launcher())) kill(process, SIGSTOP);
  }
  static void wake_host(const ElasticRun& run) {
    run.send(SIGCONT);
    for (const pid_t process : processes_of(run.launcher())) kill(process, SIGCONT);
  }

  /// Ends all hosts of a run once it has gone on a little. The step that is saved, and all that was printed.
  struct End {
    int step = 0;
    std::string out, err;
  };
  End end_all(const std::string& log, std::initializer_list<ElasticRun*> runs) const {
    EXPECT_TRUE((*runs.begin())->await((*runs.begin())->step() + 10));
    End end;
    for (ElasticRun* run : runs) run->send(SIGTERM);
    for (ElasticRun* run : runs) {
      const ProcessResult result = run->wait();
      EXPECT_EQ(result.exit_code, 130) << result.err;
      end.out += result.out;
      end.err += result.err;
    }
    const auto latest = folder_ / (log + "-ck") / "latest";
    EXPECT_TRUE(std::filesystem::exists(latest)) << end.err;
    end.step = std::atoi(read_bytes(latest).c_str() + std::string("global_step").size());
    return end;
  }

  /// Losses and weights are those of a run by so many processes of one host that nobody disturbs.
  void expect_equal_to_one_host(const std::string& log, int steps, const std::string& processes) const {
    ElasticRun straight(folder_, {"--elastic", processes + ":" + processes}, train("straight", steps));
    const ProcessResult plain = straight.wait();
    EXPECT_EQ(plain.exit_code, 0) << plain.err;
    EXPECT_EQ(metrics_of(log), metrics_of("straight"));
    const auto saved = values_saved("straight", steps);
    EXPECT_FALSE(saved.empty());
    EXPECT_EQ(values_saved(log, steps), saved);
  }

  const int port_ = free_port();
};

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

TEST_F(ElasticHosts, AreOneRunAgainAfterOneThatFollowsHasStoodStill) {
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

TEST_F(ElasticHosts, AreOneRunAgainAfterTheOneThatLeadsHasStoodStill) {
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

/// Carries connections to a port, and resets them, as a firewall does that forgets them.
class Firewall {
 public:
  explicit Firewall(int to) : to_(to), listener_(socket(AF_INET, SOCK_STREAM, 0)), thread_([this] { serve(); }) {}
  ~Firewall() {
    ends_ = true;
    thread_.join();
    reset();
    close(listener_);
  }
  Firewall(const Firewall&) = delete;
  int port() const { return port_; }
  /// Also takes no more connections.
  void reset() {
    refuses_ = true;
    const std::lock_guard lock(mutex_);
    for (const auto& [one, other] : pairs_) {
      for (const int each : {one, other}) {
        const linger now{1, 0};  // close() sends a reset
        setsockopt(each, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(each);
      }
    }
    pairs_.clear();
  }

 private:
  static sockaddr_in local(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  static bool carry(int from, int to) {
    char bytes[4096];
    const ssize_t count = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN;
    return count > 0 && send(to, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL) == count;
  }
  void accept_one() {
    const int one = accept(listener_, nullptr, nullptr), other = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = local(to_);
    if (refuses_ || connect(other, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      close(one);
      close(other);
      return;
    }
    pairs_.emplace_back(one, other);
  }
  void serve() {
    while (!ends_) {
      std::vector<pollfd> all{{listener_, POLLIN, 0}};
      {
        const std::lock_guard lock(mutex_);
        for (const auto& [one, other] : pairs_) all.insert(all.end(), {{one, POLLIN, 0}, {other, POLLIN, 0}});
      }
      poll(all.data(), all.size(), 5);
      const std::lock_guard lock(mutex_);
      if ((all[0].revents & POLLIN) != 0) accept_one();
      std::erase_if(pairs_, [](const auto& pair) {
        const bool open = carry(pair.first, pair.second) && carry(pair.second, pair.first);
        if (!open) {
          close(pair.first);
          close(pair.second);
        }
        return !open;
      });
    }
  }
  int bind_any() {
    sockaddr_in address = local(0);
    socklen_t length = sizeof address;
    bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(listener_, 16);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    return ntohs(address.sin_port);
  }

  const int to_, listener_;
  const int port_ = bind_any();
  std::atomic<bool> ends_ = false, refuses_ = false;
  std::mutex mutex_;
  std::vector<std::pair<int, int>> pairs_;
  std::thread thread_;
};

TEST_F(ElasticHosts, AreOneRunAgainAfterTheLinkBetweenThemWasReset) {
  const std::vector<std::string> words = train("log", kEndless);
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

TEST_F(ElasticHosts, WithAWitnessGoOnWhereTheOneThatLeadsIsKilled) {
  const std::vector<std::string> words = train("log", kEndless);
  ElasticRun first(folder_, launch("1:2", 1, here()), words);
  await_leader();
  ElasticRun second(folder_, launch("1:2", 1, here()), words), witness(folder_, launch("1:2", 0, here()), words);
  ASSERT_TRUE(first.await_members(2));
  ASSERT_TRUE(eventually([&] {
    return run_process({kCapstan, "launch", "--status", "--rdzv", here()}).out.find("3 hosts") != std::string::npos;
  }));
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
  EXPECT_THAT(end.out, HasSubstr("0 losses, "));
  expect_each_sample_once("log", left.out + end.out, end.step);
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
              ContainsRegex("launch .*: generation [0-9]+, 2 processes train; step [0-9]+ .* s ago; 0 losses"));
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
  EXPECT_THAT(says(with({"-n", "1", "--rdzv", "node1:29400"})),
              HasSubstr("launch: --rdzv has no effect without --elastic."));
  EXPECT_THAT(run_process({kCapstan, "launch", "--status", "--rdzv", here()}).err,
              ContainsRegex("launch: nobody answers at 127.0.0.1:[0-9]+ \\(Connection refused\\)."));
}

/// Hosts as network namespaces with an address each, joined by a bridge.
class Namespaces {
 public:
  explicit Namespaces(int count) {
    made_ = run("link add " + bridge() + " type bridge") && run("link set " + bridge() + " up");
    for (int host = 0; made_ && host < count; ++host, ++count_) {
      const std::string outside = name() + "v" + std::to_string(host);
      made_ = run("netns add " + name(host)) &&
              run("link add " + outside + " type veth peer name eth0 netns " + name(host)) &&
              run("link set " + outside + " master " + bridge() + " up") &&
              run("-n " + name(host) + " address add " + address(host) + "/24 dev eth0") &&
              run("-n " + name(host) + " link set eth0 up") && run("-n " + name(host) + " link set lo up");
    }
  }
  ~Namespaces() {
    for (int host = 0; host <= count_; ++host) run("netns delete " + name(host));
    run("link delete " + bridge());
  }
  Namespaces(const Namespaces&) = delete;
  bool made() const { return made_; }
  std::string address(int host) const { return "10.231.7." + std::to_string(host + 1); }
  /// Nothing leaves the host or reaches it from here on.
  void cut_off(int host) const { run("link set " + name() + "v" + std::to_string(host) + " down"); }
  ElasticStart start(int host) const {
    return {.program = {"/usr/sbin/ip", "netns", "exec", name(host), kCapstan},
            .environment = {"CAPSTAN_RDZV_SECRET=the secret of this test, longer than 32 characters"},
            .own_memory = false};
  }

 private:
  static std::string name() { return "ct" + std::to_string(getpid()); }
  static std::string name(int host) { return name() + "-" + std::to_string(host); }
  static std::string bridge() { return name() + "b"; }
  static bool run(const std::string& words) { return std::system(("ip " + words + " 2>/dev/null").c_str()) == 0; }
  bool made_ = false;
  int count_ = 0;
};

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

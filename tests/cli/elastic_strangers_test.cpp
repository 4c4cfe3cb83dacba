// Who calls a launcher without its secret, and hosts and leaders that tell what is not theirs to tell.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "core/elastic/launcher/callers.hpp"
#include "core/elastic/launcher/identity.hpp"
#include "core/elastic/launcher/link.hpp"
#include "tests/cli/elastic_fixture.hpp"
#include "tests/support/free_port.hpp"

namespace capstan::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

const std::string kSecret = "the secret of this test, longer than 32 characters";

/// A connection of some other program.
class Stranger {
 public:
  explicit Stranger(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  Stranger(Stranger&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~Stranger() {
    if (socket_ >= 0) close(socket_);
  }

  /// Sends as much as the other end takes until it closes.
  std::size_t say(const std::string& text) const {
    std::size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) break;
      sent += static_cast<std::size_t>(count);
    }
    return sent;
  }
  /// All that comes until the other end closes.
  std::string hear() const {
    std::string heard;
    char buffer[4096];
    for (ssize_t count = 0; (count = recv(socket_, buffer, sizeof buffer, 0)) > 0;) {
      heard.append(buffer, static_cast<std::size_t>(count));
    }
    return heard;
  }

 private:
  int socket_;
};

/// The next message with this member.
std::optional<Json> message_with(ElasticLink& link, const std::string& key) {
  std::optional<Json> found;
  eventually([&] {
    pollfd one{link.descriptor(), POLLIN, 0};
    poll(&one, 1, 10);
    link.keep_alive();
    while (!found) {
      std::optional<Json> message = link.receive();
      if (!message) break;
      if (message->find(key) != nullptr) found = std::move(message);
    }
    return found || link.is_closed();
  });
  return found;
}

bool is_closed_soon(ElasticLink& link) {
  return eventually([&] {
    link.keep_alive();
    while (link.receive()) {
    }
    return link.is_closed();
  });
}

Json report_of(const std::vector<std::int64_t>& processes) {
  Json report = Json::object();
  report["processes"] = Json::array();
  for (const std::int64_t number : processes) {
    Json process = Json::object();
    process["number"] = number;
    process["process"] = 4711;
    process["able"] = true;
    process["leaves"] = false;
    process["paused"] = 0;
    report["processes"].push_back(std::move(process));
  }
  for (const char* key : {"wanted", "spares", "broken", "lacks", "meeting", "port", "generation", "step", "kept"})
    report[key] = 0;
  report["secret"] = "";
  report["at"] = 0.0;
  return report;
}

class ElasticStrangers : public Elastic {
 protected:
  std::vector<std::string> launch() const { return {"--elastic", "1:2", "-n", "1", "--rdzv", here()}; }
  std::string here() const { return "127.0.0.1:" + std::to_string(port_); }
  static ElasticStart with_secret(const std::string& secret = kSecret) {
    return {.program = {kCapstan}, .environment = {"CAPSTAN_RDZV_SECRET=" + secret}, .own_memory = false};
  }
  ProcessResult status(const std::string& secret = kSecret) const {
    return run_process({kCapstan, "launch", "--status", "--rdzv", here()},
                       {.environment = {"CAPSTAN_RDZV_SECRET=" + secret}, .folder = {}, .terminal = false});
  }
  std::unique_ptr<ElasticLink> call() const {
    std::string why;
    return ElasticLink::call({"127.0.0.1", port_}, kSecret, milliseconds(5000), why);
  }
  /// What a host says that joins `run` and has these processes.
  Json hello(const ElasticRun& run, const std::vector<std::int64_t>& processes) const {
    Json hello = Json::object();
    hello["hello"] = launch_hashes(run.folder()->read("launch"), kSecret);
    hello["name"] = "pretended\x1b[2J";
    hello["port"] = 1;
    hello["host"] = -1;
    hello["key"] = 4711;
    hello["votes"] = VoteRecord().json();
    hello["generation"] = 0;
    hello["report"] = report_of(processes);
    return hello;
  }
  /// Still trains, with the same processes.
  static void expect_undisturbed(const ElasticRun& run) {
    const World before = *run.world();
    ASSERT_TRUE(run.await(run.step() + 5));
    EXPECT_EQ(run.world()->processes, before.processes);
    EXPECT_EQ(run.world()->generation, before.generation);
    EXPECT_EQ(run.world()->losses, 0);
  }
  static std::string end(ElasticRun& run) {
    run.send(SIGTERM);
    const ProcessResult result = run.wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    return result.err;
  }

  const int port_ = free_port();
};

TEST_F(ElasticStrangers, LearnNothingAndJoinNothing) {
  ElasticRun run(folder_, launch(), train("log", kEndless, {"--set", "wandb.team=HIDDEN"}), with_secret());
  ASSERT_TRUE(run.await(3));
  const std::string launched = run.folder()->read("launch");
  Json hello = Json::object();
  hello["hello"] = launched;
  for (const std::string& said : {hello.dump() + "\n", std::string("{\"status\": true}\n"), std::string("\n"),
                                  "capstan-launch 1 " + std::string(32, '0') + "\n" + std::string(64, '0') + " {}\n"}) {
    const Stranger stranger(port_);
    stranger.say(said);
    EXPECT_THAT(stranger.hear(), MatchesRegex("capstan-launch 1 [0-9a-f]+\n(another secret\n)?"));
  }
  EXPECT_THAT(status("another secret, which is long enough as well").err,
              HasSubstr("launch: the launcher at " + here() +
                        " has another secret. Give that of the launch "
                        "(--rdzv-secret-file, or CAPSTAN_RDZV_SECRET)."));
  EXPECT_THAT(status().out, HasSubstr("1 process trains"));
  ElasticRun other(folder_, launch(), train("log", kEndless),
                   with_secret("another secret, which is long enough as well"));
  const ProcessResult refused = other.wait();
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("launch: the launcher at " + here() +
                                     " has another secret. Give both the same "
                                     "(--rdzv-secret-file, or CAPSTAN_RDZV_SECRET)."));
  expect_undisturbed(run);
  const std::string err = end(run);
  EXPECT_THAT(err, HasSubstr("launch: a caller at 127.0.0.1 has another secret, and may not join."));
  for (const std::string& kept : {std::string("HIDDEN"), kSecret}) EXPECT_THAT(err, Not(HasSubstr(kept)));
}

TEST_F(ElasticStrangers, OfAnotherLaunchAreToldTheKindOfWhatDiffersAlone) {
  ElasticRun run(folder_, launch(), train("log", kEndless, {"--set", "wandb.team=HIDDEN"}), with_secret());
  ASSERT_TRUE(run.await(3));
  Json hello = this->hello(run, {});
  std::string launched = run.folder()->read("launch");
  launched.replace(launched.find("HIDDEN"), 6, "GUESS");
  hello["hello"] = launch_hashes(launched, kSecret);
  const auto link = call();
  ASSERT_NE(link, nullptr);
  link->send(hello);
  const auto refused = message_with(*link, "refused");
  ASSERT_TRUE(refused);
  const std::string why =
      "this launch is not the one that runs: the command line differs. Use the same program, "
      "configuration and arguments on every host.";
  EXPECT_EQ(refused->at("refused").as_string(), why);
  expect_undisturbed(run);
  EXPECT_THAT(end(run), HasSubstr("launch: pretended?[2J (127.0.0.1) may not join: " + why));
}

TEST_F(ElasticStrangers, AreBelievedAboutTheirOwnProcessesAlone) {
  ElasticRun run(folder_, launch(), train("log", kEndless), with_secret());
  ASSERT_TRUE(run.await(3));
  const std::int64_t first = run.world()->members.front();
  Json ended = Json::object(), process = Json::object(), report = Json::object(), many = Json::object();
  process["number"] = first;
  process["status"] = 256;
  ended["ended"] = Json::array();
  ended["ended"].push_back(std::move(process));
  report["report"] = report_of({first});
  many["report"] = report_of({});
  many["report"]["wanted"] = std::int64_t{1} << 60;
  for (const Json& lie : {ended, report, many}) {
    const auto link = call();
    ASSERT_NE(link, nullptr);
    link->send(hello(run, {}));
    ASSERT_TRUE(message_with(*link, "world"));
    link->send(lie);
    EXPECT_TRUE(is_closed_soon(*link));
  }
  const auto taking = call();
  ASSERT_NE(taking, nullptr);
  taking->send(hello(run, {first}));
  const auto taken = message_with(*taking, "taken");
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->at("taken").as_array().front().as_integer(), first);
  // It does not tell how far the run has come, or where its ranks meet, either.
  const auto boasting = call();
  ASSERT_NE(boasting, nullptr);
  Json far = hello(run, {});
  boasting->send(far);
  ASSERT_TRUE(message_with(*boasting, "world"));
  Json boast = Json::object();
  boast["report"] = report_of({});
  boast["report"]["generation"] = run.world()->generation;
  boast["report"]["step"] = 1'000'000'000;
  boast["report"]["broken"] = run.world()->generation;
  boasting->send(boast);
  expect_undisturbed(run);
  EXPECT_LT(run.step(), 1'000'000'000);
  const std::string err = end(run);
  EXPECT_THAT(err, HasSubstr("launch: the launcher on pretended?[2J has sent what is not believed (process number " +
                             std::to_string(first) + " is not of that host): its connection is closed."));
  EXPECT_THAT(err, HasSubstr("('wanted' is 1152921504606846976, not from 0 to 1000000000)"));
}

TEST_F(ElasticStrangers, WhoAreSilentNeitherEndNorStallARun) {
  const std::string limited = "ulimit -n 200; exec \"$0\" \"$@\"";
  ElasticStart start = with_secret();
  start.program = {"/bin/sh", "-c", limited, kCapstan};
  ElasticRun run(folder_, launch(), train("log", kEndless), start);
  ASSERT_TRUE(run.await(3));
  std::vector<Stranger> silent;
  for (int one = 0; one < 400; ++one) silent.emplace_back(port_);
  EXPECT_NE(run.kill_rank(0), 0);
  ASSERT_TRUE(run.await(run.step() + 5, 2));
  EXPECT_THAT(status().out, HasSubstr("1 process lost"));
  end(run);
}

TEST_F(ElasticStrangers, WhoTalkMuchAreHungUpOn) {
  ElasticRun run(folder_, launch(), train("log", kEndless), with_secret());
  ASSERT_TRUE(run.await(3));
  const auto peak = [&] {
    std::ifstream facts("/proc/" + std::to_string(run.launcher()) + "/status");
    std::int64_t kilobytes = 0;
    for (std::string line; std::getline(facts, line);) {
      if (line.starts_with("VmHWM:")) kilobytes = std::atoll(line.c_str() + 6);
    }
    return kilobytes;
  };
  const std::int64_t before = peak();
  std::string numbers = "{\"x\":[";
  while (numbers.size() < std::size_t{64} << 20) numbers += "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,";
  numbers += "0]}\n";
  for (const std::string& begin : {std::string(), "capstan-launch 1 " + std::string(32, 'a') + "\n"}) {
    const Stranger stranger(port_);
    EXPECT_LT(stranger.say(begin + numbers), std::size_t{32} << 20);  // what sockets hold
  }
  EXPECT_LT(peak() - before, 8 << 10);
  EXPECT_THAT(status().out, HasSubstr("0 processes lost"));
  expect_undisturbed(run);
  end(run);
}

TEST_F(ElasticStrangers, LeadersAreBelievedWhereWhatTheySendHoldsTogether) {
  std::string why;
  const auto listener = ElasticListener::at({"127.0.0.1", port_}, why);
  ASSERT_NE(listener, nullptr) << why;
  listener->set_secret(kSecret);
  ElasticRun run(folder_, launch(), train("log", kEndless), with_secret());
  ElasticCallers callers;
  std::unique_ptr<ElasticLink> follower;
  ASSERT_TRUE(eventually([&] {
    callers.hear(*listener, [&](std::unique_ptr<ElasticLink>& caller, const Json& message) {
      if (message.find("hello") != nullptr) follower = std::move(caller);
    });
    return follower != nullptr;
  }));
  Json welcome = Json::object();
  welcome["welcome"] = 1;
  welcome["by"] = 0;
  welcome["now"] = 0.0;
  follower->send(welcome);
  World world;
  world.generation = 1;
  world.members = {0, 1};
  world.processes = {1, 2};
  world.hosts = {0};
  Json message = Json::object();
  message["world"] = world.json();
  follower->send(message);
  EXPECT_TRUE(is_closed_soon(*follower));
  run.send(SIGTERM);
  EXPECT_TRUE(
      run.await_output("launch: the launcher that leads, at 127.0.0.1, has sent what is not believed (a world of "
                       "2 members has 'hosts' of 1): its connection is closed."));
}

TEST_F(ElasticStrangers, AreNotTheProcessesOfALaunchWhichDoNotGetItsSecret) {
  ElasticRun run(folder_, launch(), train("log", kEndless), with_secret());
  ASSERT_TRUE(run.await(1));
  const std::string environment = read_bytes("/proc/" + std::to_string(run.world()->processes.front()) + "/environ");
  EXPECT_THAT(environment, HasSubstr("CAPSTAN_ELASTIC_MEMBER="));
  EXPECT_THAT(environment, Not(HasSubstr("CAPSTAN_RDZV_SECRET")));
  end(run);
}

}  // namespace
}  // namespace capstan::cli

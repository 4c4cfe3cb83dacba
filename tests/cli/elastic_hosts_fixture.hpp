#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/cli/elastic_fixture.hpp"
#include "tests/support/free_port.hpp"

namespace capstan::cli {

/// Launches over several hosts, whose launchers are processes of this host.
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
  /// Both ends of the connections between ranks of two hosts learn that they are closed, as by a firewall.
  bool reset_ranks(int host, int other) const {
    return run("netns exec " + name(host) + " ss -K -tn dst " + address(other) +
               " and not dport = :29400 and not sport = :29400 >/dev/null");
  }
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

}  // namespace capstan::cli

#pragma once

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/elastic/world.hpp"
#include "core/errors.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {

/// Waits for what other processes do; looks so often, and not for ever.
inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::seconds patience = std::chrono::seconds(120)) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// How an elastic launch is started.
struct ElasticStart {
  std::vector<std::string> program = {kCapstan};  // words before "launch"
  std::string command = "train";                  // what is launched
  std::vector<std::string> environment;
  bool own_memory = false;       // `program` gives the launch a /dev/shm of its own
  std::filesystem::path memory;  // not empty: `program` gives the launch this folder as its /dev/shm
  bool own_numbers = false;      // `program` makes the launcher process 1 of a PID namespace
};

/// The processes that a process has started, in the order of their start.
inline std::vector<pid_t> children_of(pid_t process) {
  const std::string number = std::to_string(process);
  std::ifstream list("/proc/" + number + "/task/" + number + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; list >> child;) children.push_back(child);
  return children;
}

/// An elastic launch that runs beside the test, which knows of it what its folder tells: numbers of processes and
/// steps.
class ElasticRun {
 public:
  ElasticRun(const TemporaryFolder& folder, const std::vector<std::string>& launch,
             const std::vector<std::string>& train, const ElasticStart& start = {})
      : own_memory_(start.own_memory),
        memory_(start.memory),
        own_numbers_(start.own_numbers),
        process_(words_of(start.program, launch, start.command, train), options_in(folder, start.environment)) {}

  ~ElasticRun() {
    if (!::testing::Test::HasFailure()) return;
    const ProcessResult& so_far = process_.drain();
    std::cerr << "what the launch of process " << process_.pid() << " has printed:\n" << so_far.out << so_far.err;
  }

  pid_t launcher() const {
    if (!own_numbers_) return process_.pid();
    const std::vector<pid_t> children = children_of(process_.pid());
    return children.empty() ? -1 : children.front();
  }
  void send(int signal) const {
    if (const pid_t process = launcher(); process > 0) kill(process, signal);
  }
  /// Waits until a process of the launch has written `text`.
  bool await_output(const std::string& text) { return process_.wait_for_output(text); }
  ProcessResult wait() { return process_.wait(); }

  /// What the launcher has decided; nothing while it has no folder.
  std::optional<World> world() const {
    const auto folder = this->folder();
    return folder ? std::optional(folder->read()) : std::nullopt;
  }
  std::int64_t step() const {
    const auto folder = this->folder();
    return folder ? folder->last_step().step : -1;
  }
  bool has_ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(process_.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }
  /// The members have done a step of generation `generation` or a later one, and `step` steps in all.
  bool await(std::int64_t step, std::int64_t generation = 0) const {
    return while_it_runs([&](const WorldFolder& folder) {
      const WorldFolder::Step last = folder.last_step();
      return last.step >= step && last.generation >= generation;
    });
  }
  /// `members` train, and have done a step together.
  bool await_members(std::size_t members) const {
    return while_it_runs([&](const WorldFolder& folder) {
      const World world = folder.read();
      return world.members.size() == members && folder.last_step().generation == world.generation;
    });
  }
  /// The run has begun, and so many processes wait to take the place of another.
  bool await_waiting(std::size_t waiting) const {
    return while_it_runs([&](const WorldFolder& folder) {
      const World world = folder.read();
      std::size_t ready = 0;
      for (std::int64_t number = 0; number < 1000; ++number) ready += folder.is_ready(number) ? 1 : 0;
      // Before the first generation all processes wait.
      return !world.members.empty() && world.waiting.size() >= waiting && ready >= world.members.size() + waiting;
    });
  }
  /// Ends the process that is this rank now. Returns its number.
  pid_t kill_rank(std::size_t rank, int signal = SIGKILL) const {
    const std::optional<World> world = this->world();
    if (!world || rank >= world->processes.size()) return 0;
    const auto process = static_cast<pid_t>(world->processes[rank]);
    kill(process, signal);
    return process;
  }

  /// The folder of the launch as this process sees it; nothing while there is none.
  std::optional<WorldFolder> folder() const {
    std::filesystem::path memory = memory_.empty() ? "/dev/shm" : memory_;
    if (own_memory_) memory = "/proc/" + std::to_string(launcher()) + "/root/dev/shm";
    const pid_t number = own_numbers_ ? 1 : launcher();
    std::error_code gone;
    for (std::filesystem::directory_iterator entry(memory, gone), end; !gone && entry != end; entry.increment(gone)) {
      const auto& path = entry->path();
      if (WorldFolder::launcher_of(path) != number || !std::filesystem::exists(path / "world.json")) continue;
      try {
        return WorldFolder(path);
      } catch (const RuntimeFault&) {
        return std::nullopt;  // it has just been removed
      }
    }
    return std::nullopt;
  }

 private:
  bool while_it_runs(const std::function<bool(const WorldFolder&)>& condition) const {
    bool met = false;
    const bool in_time = eventually([&] {
      process_.drain();
      const auto folder = this->folder();
      met = folder && condition(*folder);
      return met || has_ended();
    });
    return in_time && met;
  }
  static std::vector<std::string> words_of(std::vector<std::string> words, const std::vector<std::string>& launch,
                                           const std::string& command, const std::vector<std::string>& train) {
    words.emplace_back("launch");
    words.insert(words.end(), launch.begin(), launch.end());
    words.emplace_back(command);
    words.insert(words.end(), train.begin(), train.end());
    return words;
  }
  static ProcessOptions options_in(const TemporaryFolder& folder, const std::vector<std::string>& environment) {
    ProcessOptions options;
    options.environment = environment;
    options.environment.insert(options.environment.begin(), "OMP_NUM_THREADS=1");
    options.folder = folder.path();
    return options;
  }

  bool own_memory_;
  std::filesystem::path memory_;
  bool own_numbers_;
  mutable Process process_;
};

}  // namespace capstan::cli

#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/elastic/launcher/system.hpp"
#include "core/elastic/world.hpp"

namespace capstan::test {

/// Processes of an elastic launch that no system runs: they become ready, train, pause and end as their launcher's
/// folder asks them to, 20 ms of an invented clock a turn. A script of the test does to them what happens to processes.
class PlayedSystem final : public LauncherSystem {
 public:
  static constexpr std::chrono::milliseconds kTurn{20};

  explicit PlayedSystem(WorldFolder folder) : folder_(std::move(folder)) {}

  // The system.
  Clock::time_point now() const override { return now_; }
  pid_t start(const std::function<void()>&) override {
    const pid_t number = kFirst + static_cast<pid_t>(processes_.size());
    const auto found = loads.find(static_cast<std::int64_t>(processes_.size()));
    processes_.emplace_back().ready_at = now_ + (found == loads.end() ? kLoads : found->second);
    if (ends_at_start) end(number, *ends_at_start);
    return number;
  }
  void send(pid_t process, int signal) override {
    Process& one = at(process);
    one.signals.push_back(signal);
    if (one.ended) return;
    if (signal == SIGKILL) end(process, SIGKILL);
    if (signal == SIGTERM && !one.hangs) one.asked = true;
  }
  std::optional<int> change_of(pid_t process) override {
    Process& one = at(process);
    if (one.changes.empty()) return std::nullopt;
    const int status = one.changes.front();
    one.changes.pop_front();
    return status;
  }
  void await_end(pid_t) override {}
  void await(const std::vector<int>&) override {
    now_ += kTurn;
    if (++turns_ > kMostTurns) throw std::runtime_error("the launcher does not end");
    for (std::size_t i = 0; i < processes_.size(); ++i) live(i);
    if (script_.empty() || !script_.front().first()) return;
    const auto action = std::move(script_.front().second);
    script_.pop_front();
    action();
  }
  int next_signal() override {
    if (signals_.empty()) return 0;
    const int number = signals_.front();
    signals_.pop_front();
    return number;
  }

  // The script.
  /// Once `condition` holds, after those before it: `action`.
  void when(std::function<bool()> condition, std::function<void()> action) {
    script_.emplace_back(std::move(condition), std::move(action));
  }
  bool is_over() const { return script_.empty(); }
  /// So many train together, and have done a step.
  std::function<bool()> train(std::size_t members) const {
    return [this, members] {
      const World& world = this->world();
      return world.members.size() == members && folder_.last_step().generation == world.generation;
    };
  }
  std::function<bool()> after(std::chrono::milliseconds time) const {
    return [this, time, since = std::optional<Clock::time_point>()]() mutable {
      if (!since) since = now_;
      return now_ - *since >= time;
    };
  }
  /// As waitpid() gives it: a signal's number, or a code in the second byte.
  void end(pid_t process, int status) {
    Process& one = at(process);
    one.ended = true;
    one.changes.push_back(status);
  }
  void stop(pid_t process) {
    at(process).stopped = true;
    at(process).changes.push_back(W_STOPCODE(SIGSTOP));
  }
  void hang(pid_t process) { at(process).hangs = true; }
  void signal(int number) { signals_.push_back(number); }
  pid_t process_of_rank(std::size_t rank) const { return static_cast<pid_t>(world().processes.at(rank)); }
  const std::vector<int>& signals_of(pid_t process) { return at(process).signals; }
  std::size_t started() const { return processes_.size(); }
  std::size_t living() const {
    return static_cast<std::size_t>(
        std::count_if(processes_.begin(), processes_.end(), [](const Process& one) { return !one.ended; }));
  }
  bool lives(pid_t process) { return !at(process).ended; }
  const World& world() const {
    if (const std::uint32_t now = folder_.revision(); now != std::exchange(revision_, now)) world_ = folder_.read();
    return world_;
  }

  std::map<std::int64_t, std::chrono::milliseconds> loads;  // how long a process takes to be ready, by its number
  std::optional<int> ends_at_start;                         // processes that are started end at once
  bool trains = true;                                       // members do steps
  std::int64_t kept = 0;                                    // the step of the newest snapshot, as rank 0 tells it

 private:
  struct Process {
    Clock::time_point ready_at;
    bool ready = false, ended = false, stopped = false, hangs = false, asked = false;
    std::deque<int> changes;
    std::vector<int> signals;
  };
  static constexpr std::chrono::milliseconds kLoads{500};
  static constexpr pid_t kFirst = 5'000'000;  // no process has such a number
  static constexpr std::int64_t kMostTurns = 200'000;

  Process& at(pid_t process) { return processes_.at(static_cast<std::size_t>(process - kFirst)); }
  /// Plays one turn of the i-th process that was started; i is its number in the launch.
  void live(std::size_t i) {
    Process& one = processes_[i];
    const auto number = static_cast<std::int64_t>(i);
    if (one.ended || one.stopped) return;
    const World& world = this->world();
    if (!world.end.empty() && !one.hangs) return end(kFirst + static_cast<pid_t>(i), W_EXITCODE(world.end_code, 0));
    if (!one.ready && now_ >= one.ready_at) {
      one.ready = true;
      folder_.tell_ready(number);
    }
    const auto member = std::find(world.members.begin(), world.members.end(), number);
    if (member == world.members.end()) {
      if (one.asked) end(kFirst + static_cast<pid_t>(i), W_EXITCODE(130, 0));
      return;
    }
    if (one.hangs || !all_train(world)) return;
    if (!world.wish.empty() || any_asked(world)) return folder_.tell_paused(world.generation, number, one.asked);
    if (member == world.members.begin() && trains) {
      folder_.tell_step({world.generation, folder_.last_step().step + 1, folder_.seconds(), kept});
    }
  }
  const Process& of_number(std::int64_t number) const { return processes_.at(static_cast<std::size_t>(number)); }
  bool all_train(const World& world) const {
    return std::all_of(world.members.begin(), world.members.end(), [&](std::int64_t number) {
      return !of_number(number).ended && !of_number(number).stopped && !of_number(number).hangs;
    });
  }
  bool any_asked(const World& world) const {
    return std::any_of(world.members.begin(), world.members.end(),
                       [&](std::int64_t number) { return of_number(number).asked; });
  }

  WorldFolder folder_;
  mutable World world_;
  mutable std::uint32_t revision_ = 0;
  Clock::time_point now_{};
  std::int64_t turns_ = 0;
  std::vector<Process> processes_;
  std::deque<std::pair<std::function<bool()>, std::function<void()>>> script_;
  std::deque<int> signals_;
};

}  // namespace capstan::test

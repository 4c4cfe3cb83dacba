#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/elastic_plan.hpp"
#include "core/elastic/world.hpp"

namespace capstan::cli {

/// The processes of an elastic launch, and who of them trains with whom. While it lives, SIGINT, SIGTERM, SIGUSR1 and
/// SIGCHLD are taken from sigtimedwait() only. One thread uses it, which must be the process's only one.
class ElasticProcesses {
 public:
  ElasticProcesses(const LaunchArguments& arguments, ElasticPlan plan);
  /// Ends all of them, and removes what they share.
  ~ElasticProcesses();
  ElasticProcesses(const ElasticProcesses&) = delete;

  /// Until all have ended. The exit code of the run.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Child {
    pid_t process = 0;
    bool able = false;  // it can be a member of a world
    std::optional<Clock::time_point> stopped_since;
    bool was_member = false;
    bool leaves = false;  // as a signal has asked it to
    bool gone = false;    // it has ended
  };

  /// Where a launch before this one is gone with all of its processes: its run goes on.
  void take_over();
  void start();
  void signalled(int number);
  void collect();
  void ended(std::int64_t number, const Child& child, int status);
  void ended_well(std::int64_t number);
  void lost(std::int64_t number, const Child& child, int status);
  void look_at_what_was_told();
  void decide();
  void check_stopped();
  void check_broken();
  void check_paused();
  void replace();
  void grow();
  void check_waiting();
  void hurry();

  std::int64_t count() const { return static_cast<std::int64_t>(children_.size()); }
  bool is_member(std::int64_t number) const;
  std::int64_t rank_of(std::int64_t number) const;
  std::string name_of(std::int64_t number) const;
  std::vector<std::int64_t> able() const;
  std::int64_t size_for(std::size_t able) const;
  std::string too_few() const;
  bool has_begun() const { return folder_.last_step().step > 0; }

  /// The next generation, perhaps of nobody until there are enough.
  void regroup(const std::string& change);
  void fail(const std::string& why, int code);
  /// All processes are to end. One of them saves where nobody else will.
  void end(const std::string& why, int code, bool save);
  void appoint_saver();
  void publish();
  void send(int number) const;

  const LaunchArguments& arguments_;
  const ElasticPlan plan_;
  const WorldFolder folder_;
  std::int64_t wanted_;  // processes that are to train
  std::int64_t spares_;
  const std::vector<std::string> words_;
  sigset_t signals_, before_;
  std::map<std::int64_t, Child> children_;  // by number
  std::int64_t next_number_ = 0;
  World world_;
  std::vector<std::int64_t> ranks_;     // the members of the last world that had some
  std::optional<std::int64_t> joined_;  // the last that became able
  std::uint32_t told_ = 0;              // what was told up to here has been looked at
  std::int64_t best_step_ = 0;          // the farthest that the run has come
  int without_progress_ = 0;            // generations since then
  Clock::time_point changed_at_ = Clock::now();
  std::optional<Clock::time_point> waiting_since_, end_at_;
  int failed_starts_ = 0;
  bool taken_over_ = false;  // and nobody has trained in this launch yet
  bool finishing_ = false;   // some members have ended well
  bool ending_ = false;      // all processes are to end
  bool asked_ = false;       // they have been asked kindly
  int interrupts_ = 0, savers_ = 0;
  int code_ = 0;
};

}  // namespace capstan::cli

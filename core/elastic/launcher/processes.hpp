#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/elastic/launcher/callers.hpp"
#include "core/elastic/launcher/host.hpp"
#include "core/elastic/launcher/link.hpp"
#include "core/elastic/launcher/plan.hpp"
#include "core/elastic/launcher/rendezvous.hpp"

namespace capstan {

/// The processes of an elastic launch, on this host and others, and who of them trains with whom. [one thread]
class ElasticProcesses {
 public:
  /// `rendezvous`: with the launchers of other hosts, of which this one leads; null: there are none.
  ElasticProcesses(const ElasticPlan& plan, ElasticHost& host, ElasticRendezvous* rendezvous);

  /// Until all have ended, or this host has left the run. The exit code of the run; nothing where this launcher does
  /// not lead any more, because it does not reach the majority of the hosts.
  std::optional<int> run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Child {
    std::int64_t host = 0, process = 0;
    bool able = false;  // it can be a member of a world
    bool leaves = false;
    std::int64_t paused = 0;  // the last generation of which it has ended the last step
    bool was_member = false;
    bool gone = false;  // it has ended
  };
  struct Host {
    std::unique_ptr<ElasticLink> link;  // null: this one
    std::string name, address;          // as a number, for the processes of other hosts
    HostId id;
    int port = 0;
    HostReport report;
    int failed_starts = 0;
    bool leaves = false;  // its processes have left, and it asks to be decided without
  };

  /// Where a launch before this one is gone with all of its processes: its run goes on.
  void take_over();
  /// Where the launcher that led this run is gone: this one decides from here on.
  void succeed();
  void name_run();
  void lead_those_met();

  void signalled(int number);
  void end_interrupted();
  void collect();
  void hear_hosts();
  void hear(std::int64_t host, const Json& message);
  bool has_members(std::int64_t host) const;
  /// Throws std::exception where that is the number of a process of another host.
  void check_is_of(std::int64_t host, std::int64_t number) const;
  /// What a host may tell of the run, because rank 0, or a member, is one of its own processes.
  void keep_own_facts(std::int64_t host, HostReport& report) const;
  void answer(std::unique_ptr<ElasticLink>& caller, const Json& message);
  std::string refusal(const Json& hello, const std::string& secret) const;
  void welcome(std::unique_ptr<ElasticLink>& caller, const Json& hello, const std::string& secret);
  bool check_numbers(const std::unique_ptr<ElasticLink>& caller, const HostReport& report, std::int64_t host) const;
  void lose_host(std::int64_t number, bool silently);
  /// Has the hosts that there are accept which ones make up the run, where that has changed.
  void agree();
  /// They have: what waited for that is done.
  void settle();
  void follow_changes();
  bool is_settled() const {
    return rendezvous_ == nullptr || (!changed_hosts_ && rendezvous_->membership().is_settled());
  }
  bool leave_others();
  void warn_of_two_hosts();
  bool has_work() const;
  void take(std::int64_t host, HostReport report);
  void ended(std::int64_t number, int status);
  void ended_well(std::int64_t number, const Child& child);
  void lost(std::int64_t number, const Child& child, int status);
  void decide();
  void check_broken();
  void check_lacking();
  void check_paused();
  void replace();
  void start(std::int64_t host);
  void grow();
  void check_waiting();
  bool save_gets_on();
  void hurry();

  std::int64_t wanted() const;
  std::int64_t count_on(std::int64_t host) const;
  bool is_member(std::int64_t number) const;
  std::int64_t rank_of(std::int64_t number) const;
  std::string name_of(std::int64_t number) const;
  std::vector<std::int64_t> able() const;
  std::int64_t size_for(std::size_t able) const;
  std::string too_few() const;
  bool may_come(std::int64_t host) const;
  bool is_elsewhere() const;
  bool waits_for_state() const { return !lacking_.empty() && is_elsewhere(); }
  WorldFolder::Step last_step() const;
  std::int64_t written() const;
  bool has_begun() const { return last_step().step > 0; }
  bool may_start() const;
  std::string status() const;

  /// The next generation, perhaps of nobody until there are enough.
  void regroup(const std::string& change);
  void fail(const std::string& why, int code);
  /// All processes are to end. One of them saves where nobody else will.
  void end(const std::string& why, int code, bool save);
  void appoint_saver();
  void publish();
  Json hosts_json() const;
  void tell_hosts();
  void send(int signal) const;

  const ElasticPlan& plan_;
  ElasticHost& host_;
  ElasticRendezvous* const rendezvous_;
  const std::int64_t own_;  // the number of this host
  std::map<std::int64_t, Host> hosts_;
  ElasticCallers callers_;
  Clock::time_point host_came_at_;
  bool changed_hosts_ = false;          // and that is not proposed yet
  bool outnumbered_ = false;            // this launcher does not lead any more
  bool succeeds_ = false;               // another launcher has led, and this one has decided nothing yet
  bool are_two_ = false;                // and the log says what that means
  std::optional<std::string> changes_;  // why a generation is to begin once the hosts have accepted the decision
  std::int64_t shown_ = 0;              // the generation whose meeting place all hosts know
  WorldFolder::Step told_step_;

  std::map<std::int64_t, Child> children_;  // by number
  World world_;
  std::vector<std::int64_t> ranks_;     // the members of the last world that had some
  std::optional<std::int64_t> joined_;  // the last that became able
  std::set<std::int64_t> lacking_;      // hosts whose processes have not found the newest state since the last step
  std::int64_t best_step_ = 0;          // the farthest that the run has come
  int without_progress_ = 0;            // generations since then
  Clock::time_point changed_at_;
  std::optional<Clock::time_point> waiting_since_, end_at_;
  const std::chrono::milliseconds time_to_write_;  // of a save
  std::optional<std::int64_t> written_;  // by all processes when a save was last seen to get on; none: no save
  bool taken_over_ = false;              // and nobody has trained in this launch yet
  bool finishing_ = false;               // some members have ended well
  bool ending_ = false;                  // all processes are to end
  bool asked_ = false;                   // they have been asked kindly
  int interrupts_ = 0, savers_ = 0;
  int code_ = 0;
};

}  // namespace capstan

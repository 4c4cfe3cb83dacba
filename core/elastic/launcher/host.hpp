#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/port_file.hpp"
#include "core/elastic/launcher/host_report.hpp"
#include "core/elastic/launcher/plan.hpp"
#include "core/elastic/launcher/system.hpp"
#include "core/elastic/world.hpp"

namespace capstan {

/// A process of a launch that has ended.
struct EndedProcess {
  std::int64_t number = 0;
  int status = 0;  // as waitpid() says it
};

/// The folder of a launch that begins, perhaps as one of the same text has left it. Throws RuntimeFault.
WorldFolder launch_folder(const std::string& launched);

/// The processes of an elastic launch on this host, and the folder that they share. [one thread]
class ElasticHost {
 public:
  ElasticHost(const ElasticPlan& plan, LauncherSystem& system, WorldFolder folder);
  /// Ends the processes, and removes what they share.
  ~ElasticHost();
  ElasticHost(const ElasticHost&) = delete;

  const WorldFolder& folder() const { return folder_; }
  bool is_empty() const { return children_.empty(); }
  void start(std::int64_t number);
  void send(int signal) const;

  /// Waits for a signal, something at one of these descriptors, or a moment.
  void await(const std::vector<int>& descriptors) const { system_.await(descriptors); }
  /// The signal that has come next; 0: none.
  int next_signal() const { return system_.next_signal(); }
  LauncherSystem::Clock::time_point now() const { return system_.now(); }

  /// Those that have ended. Ends what was stopped for too long.
  std::vector<EndedProcess> collect();
  /// What there is to tell now.
  HostReport report();

  /// One process more is to train here.
  void want_one_more() { ++wanted_; }
  /// All processes are to leave after their step, and no more are started.
  void leave();
  bool is_leaving() const { return leaving_; }

  /// The decision is taken: the processes read it.
  void write(const World& world);
  /// No process of this host trains, as far as this launcher knows: all wait for another generation.
  void halt(const std::string& why);
  /// Keeps what this launcher has accepted, for a launcher that takes over from this one.
  void remember(const std::string& votes);
  void end(std::int64_t number) const;
  const World& world() const { return world_; }
  /// Rank 0 of this generation listens there, on another host.
  void show_meeting(std::int64_t generation, const PortEntry& place);

 private:
  struct Child {
    pid_t process = 0;
    std::optional<std::chrono::steady_clock::time_point> stopped_since;
    bool able = false, was_member = false, leaves = false;
  };
  void check_stopped();
  std::string name_of(std::int64_t number) const;
  /// A process that was to train, or to wait, is not to be replaced.
  void want_one_less(Child& child);

  const WorldFolder folder_;
  LauncherSystem& system_;
  const std::int64_t train_batch_;
  std::int64_t wanted_, spares_;
  bool leaving_ = false;
  std::map<std::int64_t, Child> children_;  // by number
  World world_;
  std::unique_ptr<PortFile> shown_;  // what show_meeting() has written
};

/// "rank 2 (process 4711)", "process 4711".
std::string name_in(const World& world, std::int64_t number, std::int64_t process);
/// A signal has asked the process to end, and it has, after its step or at once.
bool has_left(int status);

}  // namespace capstan

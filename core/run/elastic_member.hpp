#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/comm/communicator.hpp"
#include "core/elastic/world.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// This process as one of an elastic launch. One thread uses it.
class ElasticMember {
 public:
  /// Nothing where no elastic launch has started this process. Throws RuntimeFault.
  static std::optional<ElasticMember> from_environment();

  /// What a process is to do next.
  enum class Task {
    kTrain,  // with the others in world()
    kSave,   // save what the newest snapshot holds, and end
    kEnd     // world().end says why, where it is not empty
  };
  /// Waits for it. `prepare` makes ready a process that others have begun without, before it is counted on;
  /// `asked_to_leave`: whether a signal has asked it.
  Task next(const std::function<void()>& prepare, bool (*asked_to_leave)());
  const World& world() const { return world_; }
  /// Processes that the run has lost so far; world() has those of the time when its generation began.
  std::int64_t losses() { return latest().losses; }

  /// Where they meet. It is used while this object lives.
  Rendezvous rendezvous();
  /// Time limits that leave it to the launcher to find out who is gone.
  Communicator::Options limits(Communicator::Options given) const;

  /// The launcher wants the members to pause after the step under way, or to end.
  bool is_to_pause();
  /// Another generation has taken the place of this one: what this process does has no future.
  bool is_over();
  /// Whether a failure of this process comes from the end of its generation: that is so, or becomes so soon.
  bool was_ended_by_others(std::chrono::milliseconds patience);
  /// The processes of this generation do not find together, or no more, as `why` tells.
  void tell_broken(const std::string& why) const { folder_.tell_broken(world_.generation, why); }
  /// They have no snapshot as new as the newest one, which is on other hosts.
  void tell_lacking() const { folder_.tell_lacking(world_.generation); }

  enum class Pause { kGoOn, kEnd };
  /// This process has ended its last step of this generation. Waits whether the run goes on with another generation, or
  /// ends: then the members of this one still have each other.
  Pause pause(bool leaves);

  const WorldFolder& folder() const { return folder_; }
  std::int64_t number() const { return number_; }
  /// The first process to call it says what the run is made of. Throws ConfigError, which names what differs, where
  /// that of this one does.
  void check_same(const Json& made_of) const;
  /// This process fails with `why`. False where another one has said the same.
  bool says_first(const std::string& why) const;
  /// The launcher does not live any more.
  bool is_orphan() const;

 private:
  ElasticMember(WorldFolder folder, std::int64_t number);
  /// What the launcher has written last.
  const World& latest();
  Task without_launcher();

  WorldFolder folder_;
  std::int64_t number_;
  World world_, latest_;
  std::uint32_t revision_ = 0;  // of latest_
  bool told_ready_ = false, prepared_ = false;
};

}  // namespace capstan

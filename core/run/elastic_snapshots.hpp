#pragma once

#include <functional>
#include <optional>

#include "core/elastic/snapshot_folder.hpp"
#include "core/engine/engine.hpp"
#include "core/errors.hpp"
#include "core/run/elastic_member.hpp"
#include "core/run/elastic_restart.hpp"

namespace capstan {

/// The members of a generation have no state of the run as new as what other hosts may have, whose processes are not
/// ready yet.
class StateElsewhere : public RuntimeFault {
 public:
  using RuntimeFault::RuntimeFault;
};

/// The snapshots of an elastic run in one of its generations. It must outlive the engine. All members call each
/// function together.
class ElasticSnapshots {
 public:
  explicit ElasticSnapshots(const ElasticMember& member)
      : folder_(member.folder().snapshots(), member.number(), member.world().order()) {}
  explicit ElasticSnapshots(const ElasticRestart& restart)
      : folder_(restart.folder(), restart.member(), restart.generation()) {}

  /// Loads the newest one that is whole. Returns what was kept with it; nothing where there is none.
  std::optional<Json> load(Engine& engine);
  /// After a step: begins one where it is due, and returns whether it is. `kept` makes what is kept with it.
  bool after_step(Engine& engine, const std::function<Json()>& kept);
  /// Takes one now; it is whole when all have returned.
  void take(Engine& engine, const Json& kept);
  /// The step of the newest one that all members know to be whole; 0: none.
  std::int64_t kept_step() const { return folder_.kept_step(); }

 private:
  SnapshotFolder folder_;
};

}  // namespace capstan

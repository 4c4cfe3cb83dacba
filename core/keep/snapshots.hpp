#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/background_save.hpp"
#include "core/checkpoint/snapshot.hpp"
#include "core/config/config.hpp"
#include "core/elastic/snapshot_folder.hpp"
#include "core/elastic/snapshot_pace.hpp"

namespace capstan {

/// The snapshot that an engine makes beside its training, and when the next one is due. [engine]
class Snapshots {
 public:
  explicit Snapshots(const ElasticRunConfig& config) : pace_(config.every, config.overhead) {}

  void want(bool on) { wanted_ = on; }
  /// On rank 0: whether one is to be made after so many steps.
  bool is_due(std::int64_t steps) const;
  /// At the end of a step: what the ranks have told each other. `sealed`: all have sealed the last snapshot.
  void agree(bool due, bool sealed);
  /// Whether one is to be begun after the step that has ended.
  bool due() const { return due_; }

  /// Whether there is one that no rank knows yet to be whole: it has been begun, and no step has ended since.
  bool is_newest() const { return unconfirmed_; }
  /// The room that this rank needs was not looked for yet.
  bool is_first() const { return first_; }
  void note_room(std::vector<std::int64_t> members) {
    first_ = false;
    members_ = std::move(members);
  }
  const std::vector<std::int64_t>& members() const { return members_; }
  /// Once a snapshot of this engine is whole: removes what processes have left that are not in its world.
  void remove_others(const SnapshotFolder& folder);
  /// The layout of these tensors.
  std::shared_ptr<const SnapshotLayout> layout_of(const std::vector<CheckpointTensor>& tensors);
  /// Seals a segment of that number. Returns what it has cost, in seconds.
  using Write = std::function<double(SnapshotId id)>;
  /// Has a thread run `write`, or runs it here where `now`. `begun`: what thread_seconds() was when the engine turned
  /// to this snapshot, which is of `step`.
  void start(SnapshotFolder& folder, std::int64_t step, Write write, bool now, double begun);
  /// Seconds of CPU time of the thread that calls.
  static double thread_seconds();

  /// Waits until what was begun is sealed. Whether it is; true where nothing was begun.
  bool finish();
  /// Waits; values change now otherwise than by a step.
  void forget();
  double seconds() const { return seconds_; }

  /// Connects the threads that send snapshots to other hosts; null: there is nobody to send to.
  std::shared_ptr<Communicator> partners;

 private:
  struct Written {
    bool sealed = false;
    double cost = 0;  // seconds
  };
  double elapsed() const;

  SnapshotPace pace_;
  bool wanted_ = false, due_ = false, first_ = true;
  bool under_way_ = false;               // the thread may be at work
  bool unconfirmed_ = false;             // begun, and the ranks have not told each other since
  double begun_cpu_ = 0;                 // CPU seconds of the engine's thread for what is under way
  double last_wall_ = 0, last_cpu_ = 0;  // when the last one was begun, by the clocks of elapsed()
  double seconds_ = 0;
  bool others_remain_ = true;
  bool whole_ = false;  // one of this engine's is
  std::vector<std::int64_t> members_;
  SnapshotFolder* folder_ = nullptr;
  SnapshotId id_;
  std::int64_t step_ = 0;
  std::shared_ptr<const SnapshotLayout> layout_;
  std::shared_ptr<Written> written_ = std::make_shared<Written>();
  std::shared_ptr<std::string> told_ = std::make_shared<std::string>();  // why the last one is not made
  BackgroundSave thread_;                                                // last, because it uses the members above
};

}  // namespace capstan

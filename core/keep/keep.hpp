#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/background_save.hpp"
#include "core/checkpoint/carried_files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/run_identity.hpp"
#include "core/components/engine_parts.hpp"
#include "core/keep/checkpoint_lookup.hpp"
#include "core/keep/given_weights.hpp"
#include "core/keep/saved_run.hpp"
#include "core/keep/snapshots.hpp"

namespace capstan {

class MonitorHost;
struct SnapshotCandidate;

/// The steps of an engine, as far as saving and loading have to do with them.
struct KeptSteps {
  virtual ~KeptSteps() = default;
  /// Micro-batches of the step under way that have had their backward.
  virtual std::int64_t micro_steps_done() const = 0;
  /// Forgets the step under way, whatever an exception has left of it: its gradients, losses and counters.
  virtual void abandon_step() = 0;
  /// The run is somewhere else now: EngineParts::progress is what was loaded.
  virtual void moved() = 0;
  /// Makes all ranks' parameters equal, where an optimizer lets them differ.
  virtual void synchronize() = 0;
  virtual void tell(capstan_event_kind kind) = 0;
  /// The monitors; null: none has been opened yet.
  virtual MonitorHost* opened_monitors() = 0;
  /// Makes the monitors of the run that was loaded.
  virtual void renew_monitors() = 0;
};

/// Saves an engine and loads it: checkpoints, snapshots, and weights that come from elsewhere. A Keep is destroyed
/// before the parts and steps of the engine, which the threads of the Keep use. [engine]
class Keep {
 public:
  Keep(EngineParts& parts, KeptSteps& steps);

  // Saving (checkpoint_save.cpp).
  std::string save(const std::string& dir, const std::string& tag, const Json& client_state, bool frozen);
  BackgroundSave& background_save() { return background_save_; }

  // Loading (checkpoint_load.cpp, load_weights.cpp, load_teacher.cpp).
  Json load(const std::string& dir, const std::string& tag, const std::function<void(const Json&)>& check_client_state,
            LoadOptions options);
  Json load_weights(const std::string& file, bool strict);
  void load_teacher(const std::string& path);
  /// Throws RuntimeFault where a load has ended half way.
  void refuse_half_loaded() const;
  /// Throws RuntimeFault where layer reduction is on and there was no teacher.
  void refuse_without_teacher() const;

  // Snapshots (snapshot_save.cpp, snapshot_load.cpp).
  void begin_snapshot(SnapshotFolder& folder, const Json& client_state);
  std::optional<Json> load_snapshot(SnapshotFolder& folder);
  Snapshots& snapshots() { return snapshots_; }

  /// Rank 0's names the run; empty: it began without one.
  const std::string& run_id() const { return run_id_; }
  /// Global samples of the checkpoint that was loaded.
  std::optional<std::int64_t> resumed_at() const { return resumed_at_; }

 private:
  /// States of the whole model that checkpoints hold, with their values.
  std::vector<std::pair<const StateSpec*, at::Tensor*>> model_states();
  void add_entries(CheckpointContents& contents);
  void add_values(CheckpointContents& contents, CheckpointTensor tensor, std::size_t entry, int which,
                  const at::Tensor& whole, std::int64_t from, std::int64_t count,
                  const std::shared_ptr<ValuesRoom>& room);
  void add_compression_states(CheckpointContents& contents);
  void add_frozen(CheckpointContents& contents);
  void add_rest(CheckpointContents& contents, const char* call);
  Json run_state(const Json& client_state) const;
  std::string agreed_tag(const std::string& tag);
  /// checkpoint.use_node_local_storage: every node has a folder of its own.
  bool nodes_store() const;
  void write(const std::string& dir, const std::string& tag, CheckpointContents contents);
  /// Between steps, when what other threads do is settled: all that this rank saves but state.json.
  /// Called by all ranks; `call`: how the collectives are named.
  CheckpointContents saved_contents(const char* call, bool frozen = true);
  /// Throws RuntimeFault in the middle of a step, and where a load has ended half way. `call`: what is refused.
  void refuse_to_save(const char* call) const;
  void settle_to_save(const char* call);

  /// Becomes what check() has found to fit. `call`: how the collectives are named.
  void take_over(const CheckpointContents& contents, const SavedRun& saved, const std::string& where,
                 const std::string& call);
  /// Which tensors of a checkpoint this rank reads: of trainable parameters those that lie in its part, and of carried
  /// files rank 0 alone all.
  std::function<bool(const CheckpointTensor&)> taken_tensors(LoadOptions options = {});
  /// The parameters of the optimizer's groups; empty where nothing is trained.
  TrainedNames trained_names() const;
  /// Compares all of a checkpoint with this engine, and changes nothing. Throws RuntimeFault naming what does not fit.
  SavedRun check(const CheckpointContents& contents, const CheckpointLookup& lookup, LoadOptions options = {});
  void check_optimizer(const SavedRun& saved, const std::string& where) const;
  void check_group_numbers(const SavedRun& saved, const std::string& where) const;
  void check_states(const CheckpointLookup& lookup, const SavedRun& saved);
  void check_generators(const CheckpointLookup& lookup, const SavedRun& saved) const;
  /// Takes over what check() has found to fit.
  void apply(const CheckpointLookup& lookup, const SavedRun& saved);
  void load_components(const SavedRun& saved, const std::string& where);
  void restore_groups(const SavedRun& saved, const std::string& where);
  void load_sampler(const SavedRun& saved, const std::string& where);
  void load_entries(const CheckpointLookup& lookup, const SavedRun& saved);
  /// Whether an entry is a trained state that the checkpoint lacks: its compression is new to the run.
  bool begins_anew(const ParameterEntry& entry, const CheckpointLookup& lookup) const;
  void load_compression_states(const CheckpointLookup& lookup);
  void load_model_states(const CheckpointLookup& lookup, const SavedRun& saved);
  void load_frozen(const CheckpointLookup& lookup);
  void load_generators(const CheckpointLookup& lookup, const SavedRun& saved);
  /// The model's values become those that `check` has found to fit, and the run is not what it was.
  void take_given(const GivenWeights& values, const char* call);

  // Tensors that a forward may change by its own samples (forward_tensors.cpp): persistent buffers, and parameters that
  // are not of floating point. Each rank has all of them.
  struct ForwardTensor {
    std::string name;
    const char* state;  // the state of a checkpoint that holds it
    at::Tensor tensor;
  };
  std::vector<ForwardTensor> forward_tensors() const;
  /// Adds rank 0's, and on other ranks those that are not alike on all. Called by all ranks.
  void add_forward_tensors(CheckpointContents& contents, const char* call);
  void check_forward_tensors(const CheckpointLookup& lookup) const;
  /// A rank's own, or rank 0's: where all were alike, and with another number of processes.
  void load_forward_tensors(const CheckpointLookup& lookup, const SavedRun& saved);

  // Differences of a checkpoint and this run (unmatched.cpp), which rank 0 logs.
  void warn_of_other_components(const SavedRun& saved, const std::string& where) const;
  void warn_of_other_buffers(const CheckpointLookup& lookup) const;
  void warn_of_other_states(const CheckpointLookup& lookup, const SavedRun& saved);
  void warn_of_other_numbers(const CheckpointContents& contents, const std::string& where) const;

  /// The contents of a snapshot of this step. Nothing of them changes before the next update.
  CheckpointContents snapshot_contents();
  /// Throws RuntimeFault on all ranks where shared memory of some host has no room.
  void agree_on_room(SnapshotFolder& folder, std::uint64_t segment);
  /// Connects the threads that make snapshots, where hosts have copies of each other's.
  void connect_partners();
  /// Tells apart runs whose tensors are others, whatever their world is.
  std::uint64_t layout_hash();
  /// Nothing, and nothing has changed, where some rank finds that the snapshot is no use.
  std::optional<Json> take_snapshot(const SnapshotFolder::Found& found, const SnapshotCandidate& candidate,
                                    const std::string& where);

  EngineParts& parts_;
  KeptSteps& steps_;
  std::string run_id_ = new_run_id(process_environment());
  std::optional<std::int64_t> resumed_at_;
  CarriedFiles files_;                          // rank 0's: of the folder or file that the weights come from
  bool wants_teacher_;                          // layer reduction is on, and the student has not begun
  bool half_loaded_ = false;                    // a load has begun to change the engine, and not ended
  std::shared_ptr<Communicator> saving_ranks_;  // connects the threads that write checkpoints
  std::optional<std::uint64_t> known_layout_;   // layout_hash()
  BackgroundSave background_save_;              // last but one, because its thread uses what the engine is built of
  Snapshots snapshots_;                         // last, for the same reason
};

}  // namespace capstan

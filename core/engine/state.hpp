#pragma once

#include <ATen/core/Generator.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/attention/sparse_attention.hpp"
#include "core/checkpoint/background_save.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/communicator.hpp"
#include "core/comm/run_identity.hpp"
#include "core/compression/compressions.hpp"
#include "core/compression/operand_inputs.hpp"
#include "core/data/sampler.hpp"
#include "core/engine/checkpoint_lookup.hpp"
#include "core/engine/curvature.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/host.hpp"
#include "core/engine/observers.hpp"
#include "core/engine/optimizer.hpp"
#include "core/engine/pacing.hpp"
#include "core/engine/progress_report.hpp"
#include "core/engine/saved_run.hpp"
#include "core/engine/schedule.hpp"
#include "core/engine/snapshots.hpp"
#include "core/engine/step_under_way.hpp"
#include "core/engine/timers.hpp"
#include "core/engine/tuning_trial.hpp"
#include "core/memory/accelerator.hpp"
#include "core/memory/forward_rerun.hpp"
#include "core/memory/recompute/boundary_offload.hpp"
#include "core/memory/recompute/recomputation.hpp"
#include "core/monitor/monitor_host.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/parameters/parameter_store.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/parameters/slot_blocks.hpp"
#include "core/precision/loss_scaler.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

struct SnapshotCandidate;

/// Everything behind an Engine. Members are built in this order and destroyed in the reverse one.
struct Engine::State {
  State(Model model, const Config& config, const PluginIndex& plugins, std::shared_ptr<Communicator> communicator);
  ~State();

  // Building.
  Model join(Model model);
  std::unique_ptr<Accelerator> build_accelerator();
  /// Moves parameters and buffers to the device.
  Model move_to_device(Model model) const;
  /// The random number generators of this rank, by the name that checkpoints know them by.
  std::vector<std::pair<std::string, at::Generator>> generators() const;
  Component create(const ComponentChoice& choice);
  void cast_buffers();
  void build_monitors();
  /// The optimizer's manifest; null when there is no optimizer.
  const ComponentManifest* manifest() const { return optimizer ? &optimizer->manifest() : nullptr; }
  Compressions build_compressions();
  /// Throws ConfigError where compressions use gradients that the optimizer averages itself.
  void refuse_gradient_uses(const Compressions& made) const;
  /// Shows compressions the gradients of the step: to change them, or before an update that will be made.
  void show_gradients(bool changes);
  ParameterStore::Options store_options();
  OffloadOptions offload_options();
  ShardingOptions sharding_options();
  /// Where the inputs of recomputed layers wait.
  void open_activation_store();
  /// What went to and from all stores.
  OffloadTraffic offload_traffic() const;
  /// How each trainable parameter's gradient travels between ranks; empty: all alike.
  std::vector<GradientTransport> gradient_transports() const;

  /// Ends what is under way between the ranks, in a few seconds where an exception ends the engine.
  void close() noexcept;

  // One step (step.cpp; with several processes: ranks.cpp).
  void emit(capstan_event_kind kind, const at::Tensor* loss = nullptr, bool skipped = false);
  at::Tensor forward(Batch& batch);
  /// Tells observers and the model where the micro-batch stands in the run: numbers `global_step` and `micro_step`, and
  /// the tensor `sample_position`, int64 [rows], the place of each row in the order of all samples.
  void place_batch(Batch& batch) const;
  /// The sampler's part in the micro-batch; a word where a program leaves the sampler out.
  void change_by_sampler(Batch& batch);
  /// The model's forward in the precision asked for.
  at::Tensor run_model(Batch& batch);
  /// Calls `run` in the precision of forward.
  void run_in_precision(const std::function<void()>& run) const;
  /// Where regions begin that are computed again in backward: in a forward that trains.
  void begin_recomputation(Batch& batch);
  /// What the operators of a backward run under; null: nothing.
  OperatorPolicy* policy_of_backward();
  /// The forward of a micro-batch once more, as it trained: for its second derivatives.
  at::Tensor forward_again(Batch& batch);
  void lend_curvature();
  /// Calls `run` with the model's parameters there, from one use to the next.
  void run_pass(Batch& batch, ParameterResidency::Pass pass, const std::function<void()>& run);
  /// What a pass that trains begins with; what follows is run_training_pass(). `of_model`: the model reads the batch,
  /// and not components alone.
  void begin_forward(Batch& batch, bool of_model);
  void run_training_pass(Batch& batch, const std::function<void()>& run);
  void pass(PassKind kind, Batch& batch, const std::function<void()>& run);
  void backward(const at::Tensor& loss, BackwardOptions options);
  /// Whether the micro-batch that the next backward is of is the last of its step / the step has had all of them.
  bool next_is_last() const;
  bool at_boundary() const;
  /// Throws RuntimeFault after a backward or an update that an exception has ended, until the step is abandoned.
  void refuse_unfinished_step() const;
  StepReport step();
  void finish_step(bool applied);
  void zero_grad();
  /// Throws RuntimeFault for a parameter that was frozen when the engine was made and is trainable now.
  void refuse_unfrozen() const;
  /// Forgets the step under way, whatever an exception has left of it: its gradients, losses and counters.
  void abandon_step();
  /// Keeps the loss of a micro-batch, on a device where it is, until read_losses adds all of the step's up: one wait
  /// for the device a step.
  void note_loss(const at::Tensor& loss);
  void read_losses();
  std::string step_name() const;
  /// The parameters of layers that observers left out have zero gradients: weight decay and momentum act on them, as
  /// they do where DeepSpeed's engine fills in what backward has left empty.
  void give_zeros_to_left_out();
  /// The indices of the store's entries that belong to layers of these names.
  template <class Layers>
  std::vector<std::size_t> entries_of(const Layers& layers);
  /// Ends the step's exchange between ranks: loss, which gradients there are and whether they are finite, their norm
  /// when `norm`.
  void agree_on_step(bool norm);
  void refuse_unused_parameters();
  /// After the first forward that trains: each module whose input is to be compressed must have had one.
  void refuse_unused_operands() const;
  std::vector<double> measure(const SubGroup& sub_group, const std::vector<const capstan_slot*>& slots,
                              const capstan_step& step);
  /// The sums over the whole model that the optimizer asks for; empty when it asks for none.
  std::vector<double> measure_model(const capstan_step& step);
  /// False when the update must be skipped; fills the norm and the factor for the gradients.
  bool check_and_measure(StepReport& report, double& grad_scale);
  /// Tells observers, who may ask for second derivatives where the update is applied.
  void begin_update(bool applied);
  void update(double grad_scale);
  capstan_step step_of_update(double grad_scale);
  /// Optimizers that communicate by themselves: whether this step's gradients stay each rank's own.
  bool wants_local_gradients();
  /// Makes all ranks' parameters equal, where an optimizer lets them differ.
  void synchronize();
  void update_sub_group(const SubGroup& sub_group, const capstan_step& step);
  /// Updates with the program's own optimizer.
  void update_by_program(double grad_scale);
  bool reports_norm() const { return needs_norm(config) || want_grad_norm; }
  void stop_or_skip(const std::string& what);
  std::string first_not_finite();
  void report_line(const std::string& text);

  // Numbers of parameter groups (group_numbers.cpp).
  /// Throws RuntimeFault for a number that the group's optimizer lacks, does not allow, or cannot change any more.
  void check_group_number(std::size_t group, const std::string& name, const std::vector<double>& values) const;

  // Metrics (metrics.cpp).
  MonitorHost& open_monitors();
  void write_step_metrics(const Spans& spans);
  /// Prints the timers of the micro-batch, and adds them to the step's.
  void print_micro_timers();

  // Checkpoints (checkpoint_save.cpp, checkpoint_load.cpp).
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
  std::string save(const std::string& dir, const std::string& tag, const Json& client_state, bool frozen);
  Json load(const std::string& dir, const std::string& tag, const std::function<void(const Json&)>& check_client_state,
            bool strict);
  /// Becomes what check() has found to fit. `call`: how the collectives are named.
  void take_over(const CheckpointContents& contents, const SavedRun& saved, const std::string& where,
                 const std::string& call, bool strict = true);
  /// Which tensors of a checkpoint this rank reads: of trainable parameters those that lie in its part.
  std::function<bool(const CheckpointTensor&)> taken_tensors();
  /// Compares all of a checkpoint with this engine, and changes nothing. Throws RuntimeFault naming what does not fit.
  SavedRun check(const CheckpointContents& contents, const CheckpointLookup& lookup);
  void check_optimizer(const SavedRun& saved, const std::string& where) const;
  void check_group_numbers(const SavedRun& saved, const std::string& where) const;
  void check_states(const CheckpointLookup& lookup, const SavedRun& saved);
  void check_generators(const CheckpointLookup& lookup, const SavedRun& saved) const;
  /// Takes over what check() has found to fit.
  void apply(const CheckpointLookup& lookup, const SavedRun& saved);
  /// Throws RuntimeFault where a load has ended half way.
  void refuse_half_loaded() const;
  /// Throws RuntimeFault where layer reduction is on and there was no teacher.
  void refuse_without_teacher() const;
  void load_components(const SavedRun& saved, const std::string& where);
  void restore_groups(const SavedRun& saved, const std::string& where);
  void load_sampler(const SavedRun& saved, const std::string& where);
  void load_entries(const CheckpointLookup& lookup);
  /// Whether an entry is a trained state that the checkpoint lacks: its compression is new to the run.
  bool begins_anew(const ParameterEntry& entry, const CheckpointLookup& lookup) const;
  void load_compression_states(const CheckpointLookup& lookup);
  void load_model_states(const CheckpointLookup& lookup, const SavedRun& saved);
  void load_frozen(const CheckpointLookup& lookup);
  void load_generators(const CheckpointLookup& lookup, const SavedRun& saved);

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

  // What a checkpoint and this run do not have in common (unmatched.cpp), which rank 0 logs.
  void warn_of_other_components(const SavedRun& saved, const std::string& where) const;
  void warn_of_other_buffers(const CheckpointLookup& lookup) const;
  void warn_of_other_states(const CheckpointLookup& lookup);

  // Snapshots (snapshot_save.cpp, snapshot_load.cpp).
  void begin_snapshot(SnapshotFolder& folder, const Json& client_state);
  /// What a snapshot of this step holds, of which nothing changes before the next update.
  CheckpointContents snapshot_contents();
  /// Throws RuntimeFault on all ranks where shared memory of some host has no room.
  void agree_on_room(SnapshotFolder& folder, std::uint64_t segment);
  /// Connects the threads that make snapshots, where hosts have copies of each other's.
  void connect_partners();
  /// Tells apart runs whose tensors are others, whatever their world is.
  std::uint64_t layout_hash();
  std::optional<Json> load_snapshot(SnapshotFolder& folder);
  /// Nothing, and nothing has changed, where some rank finds that the snapshot is no use.
  std::optional<Json> take_snapshot(const SnapshotFolder::Found& found, const SnapshotCandidate& candidate,
                                    const std::string& where);

  std::shared_ptr<Communicator> communicator;
  Config config;
  std::function<void(std::string_view)> report_output;  // before what communicates, which may print
  PluginIndex plugins;
  EngineHostContext host_context;
  capstan_host host;
  Registry registry;
  std::unique_ptr<Accelerator> accelerator;
  Model model;
  Observers observers;
  Compressions compressions;
  ParameterGroups groups;
  std::optional<Optimizer> optimizer;
  Schedule schedule;
  ParameterStore store;
  ForwardRerun rerun;                                 // of the last forward, or of the backward under way
  Batch batch_of_backward;                            // of the last pass that trained, for layers that run again
  std::unique_ptr<OperandInputs> operand_inputs;      // of compressions; null: none changes an input
  std::unique_ptr<SparseAttention> attention;         // null: attention is dense
  OperatorPolicies forward_policies;                  // what the last forward ran under
  OperatorPolicies replay_policies;                   // those of these under which operators run again in backward
  std::unique_ptr<OffloadDevice> activation_device;   // capstan.offload.activations; null: none
  std::unique_ptr<BoundaryOffload> activation_store;  // on that device
  OperatorPolicies policies_run_again;                // those of forward, in backward
  std::optional<BackwardPolicies> backward_policies;  // of the backward under way
  Recomputation recomputation;                        // after the policies, which its regions run under
  LossScaler scaler;
  std::unique_ptr<TuningTrial> trial;  // of capstan tune; null: the run is none
  Timers micro_timers, step_timers, optimizer_timers;
  ProgressReport progress_report;
  std::vector<std::string> layer_names;       // of the model, as forward runs them
  Pacing pacing;                              // of curricula whose schedule is custom
  std::optional<Sampler> sampler;             // of the order of samples
  std::map<std::string, double> recorded;     // numbers that components have of the step under way, by their whole tags
  std::map<std::string, double> told;         // numbers that components tell each other
  Curvature curvature;                        // second derivatives, for components that want them
  std::vector<Component> monitor_components;  // until they are opened
  std::unique_ptr<MonitorHost> monitors;      // from the first metric on

  std::shared_ptr<std::size_t> open_gathers = std::make_shared<std::size_t>(0);  // scopes of gather()
  std::vector<NamedTensor> frozen;  // the model's own tensors that were frozen when the engine was made

  std::string run_id = new_run_id(process_environment());  // rank 0's names the run; empty: it began without one
  Progress progress;
  OwnOptimizer own_optimizer;              // the program's; null: the configuration's
  std::optional<bool> boundary;            // whether the micro-batch is the last, as the program says; none: counted
  std::optional<std::int64_t> resumed_at;  // global samples of the checkpoint that was loaded
  StepReport last_step;
  StepUnderWay under_way;
  bool wants_teacher = false;         // layer reduction is on, and the student has not begun
  bool half_loaded = false;           // a load has begun to change the engine, and not ended
  std::int64_t evaluated_at = -1;     // updates when ranks were last made equal for an evaluation pass
  std::int64_t micro_steps_seen = 0;  // micro-batches since this run began
  double mean_loss = 0;               // the mean loss of the last complete step
  double data_ms = 0;                 // the time that making the next micro-batch took
  CommsLog::Traffic traffic_before;   // the current step
  OffloadTraffic offload_before;      // the current step
  bool want_grad_norm = false;
  bool stop_asked = false;                     // on this rank
  bool stop_agreed = false;                    // on all
  std::shared_ptr<Communicator> saving_ranks;  // connects the threads that write checkpoints
  BackgroundSave background_save;              // last but one, because its thread uses the members above
  std::optional<std::uint64_t> known_layout;   // layout_hash()
  Snapshots snapshots{config.run.elastic};     // last, for the same reason
};

}  // namespace capstan

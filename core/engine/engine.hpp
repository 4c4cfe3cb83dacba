#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/comms_log.hpp"
#include "core/components/progress.hpp"
#include "core/config/config.hpp"
#include "core/engine/gather.hpp"
#include "core/keep/load_options.hpp"
#include "core/model/batch.hpp"
#include "core/model/model.hpp"

namespace capstan {

class Communicator;
class SnapshotFolder;

/// What a step did.
struct StepReport {
  bool applied = true;    // false: skipped, because gradients were not finite
  double lr = 0;          // the rate of group 0 in this step
  double momentum = 0;    // what group 0 used in this step: its first beta, else its momentum; 0 without either
  double grad_norm = 0;   // L2 of the unscaled gradients before clipping; NaN when nothing needed it
  double loss_scale = 1;  // the scale of the loss in this step
};

using NextBatch = std::function<Batch()>;

/// What becomes of a pass through the model.
enum class PassKind {
  kTraining,    // a loss that is made of it goes to backward()
  kEvaluation,  // no backward: runs without gradients
};

/// How backward() takes a loss.
struct BackwardOptions {
  bool over_accumulation = true;  // divides it by gradient_accumulation_steps; false: the program has divided it
  bool retain_graph = false;      // keeps the graph for other uses of the program's; it has one backward here
};

/// The numbers of a parameter group, "lr" and the optimizer's own, and the parameters that have them.
struct ParameterGroupView {
  std::vector<std::pair<std::string, std::vector<double>>> numbers;
  std::vector<std::string> parameters;
};

/// A parameter as a program's own optimizer updates it.
struct OwnSlot {
  std::string name;
  at::Tensor master;    // its float32 values, in the parameter's shape, without autograd
  at::Tensor gradient;  // of the same shape; the mean over ranks, unscaled and clipped
};
/// Updates masters in place; on every rank the same.
using OwnOptimizer = std::function<void(const std::vector<OwnSlot>&)>;

/// Trains one model as a configuration says. One thread drives it [engine].
class Engine {
 public:
  /// Builds every component that the configuration names. With a communicator of several processes, each of which
  /// builds the same: all start from rank 0's values. Throws ConfigError, PluginError, RuntimeFault.
  Engine(Model model, const Config& config, const PluginIndex& plugins,
         std::shared_ptr<Communicator> communicator = nullptr);
  ~Engine();
  Engine(Engine&&) noexcept;

  /// The loss of one micro-batch, a scalar tensor with its graph.
  at::Tensor forward(Batch& batch);
  /// Calls `run`, which runs the model in whatever way and takes of it what it wants, as forward() runs it: parameters
  /// are there for LibTorch's operators, observers see and may change `batch` first. The loss that the program makes of
  /// it, in `run` or later, goes to backward(). What `run` throws is thrown. An evaluation may come between any two
  /// calls; at ZeRO stage 3 every pass is one of all ranks.
  void pass(PassKind kind, Batch& batch, const std::function<void()>& run);
  /// Backward of loss / gradient_accumulation_steps (times the loss scale under fp16); gradients accumulate. After one
  /// that an exception has ended, as after such an update, forward, backward and step throw RuntimeFault until a
  /// checkpoint is loaded: some gradients have been added, and some have not. Throws RuntimeFault as well where the
  /// step has had all of its micro-batches.
  void backward(const at::Tensor& loss, BackwardOptions options = {});
  /// After the last micro-batch of a step it computes the gradients' norm, clips, updates, moves the schedule on and
  /// tells observers and monitors. After earlier micro-batches it only counts them, and returns the report of the last
  /// complete step. Throws RuntimeFault where capstan.run.on_nan is "stop" and the loss or a gradient is not finite on
  /// some rank, but for an overflow: a gradient that is not finite where the loss is scaled, or where
  /// bf16.check_grad_overflow is on, skips the step. No parameter has changed then.
  StepReport step();
  /// Drops the gradients and the losses of the step's micro-batches so far, which go on counting as micro-batches. The
  /// mean loss is that of the others; NaN where there are none. Called by all ranks, between backward and the next
  /// forward.
  void zero_grad();
  /// One whole step: gradient_accumulation_steps micro-batches from `next`. Returns the mean loss.
  double train_batch(const NextBatch& next);
  /// The mean loss over all ranks of the next `micro_batches` batches, each counted by its weight. Runs without
  /// gradients, in evaluation mode, and writes the metric Train/Samples/eval_loss. Below ZeRO stage 3 each rank may
  /// pass its own number. There each forward is one of all ranks: a rank that has fewer gives batches of weight 0 as
  /// well.
  double eval_batch(const NextBatch& next, std::int64_t micro_batches);

  /// Named tensors that the model computes of one micro-batch beside its loss: "logits" of gpt. Runs without gradients,
  /// in evaluation mode, and is no part of the step under way; the batch may lack labels. The tensors are the caller's,
  /// on the device, in the dtype that the model computes in. At ZeRO stage 3 it is one pass of all ranks, as every
  /// forward. Throws RuntimeFault for a model without outputs.
  std::map<std::string, at::Tensor> outputs(Batch& batch);

  /// Writes <dir>/<tag>/ (tag default: global_step<N>) and moves `latest` last. `client_state` comes back from load.
  /// Returns the tag. Throws RuntimeFault; what was saved before stays as it was. With checkpoint.writer.decoupled or
  /// datastates_ckpt it returns once there is a copy of everything, which a thread writes; what fails then is thrown by
  /// the next step(), save_checkpoint() or finish_saving(). Without `frozen` the checkpoint leaves out parameters that
  /// are not trained; an engine that loads it keeps those that it has.
  std::string save_checkpoint(const std::string& dir, const std::string& tag = "",
                              const Json& client_state = Json::object(), bool frozen = true);
  /// A checkpoint is still being written.
  bool saving() const;
  /// Waits for it, `patience` at most. Whether it is written, and well; false where none was. [any thread]
  bool saved_within(std::chrono::milliseconds patience) const;
  /// Waits until no checkpoint is being written. Throws RuntimeFault when writing one failed.
  void finish_saving();
  /// Loads the tag, or the one `latest` names. Returns the client state. A step under way is forgotten, also one that
  /// an exception ended. Throws RuntimeFault naming the file and what differs, on all ranks; the engine is then as
  /// before. Whatever fails on one rank is thrown on all of them, on the others as a RuntimeFault that names the rank.
  /// When that happens after the engine has begun to change, memory that is lacking for instance, it refuses to be used
  /// until a load succeeds.
  /// `check` may refuse the client state by throwing, before the engine changes. `options`: without `strict`,
  /// parameters and buffers that the checkpoint or the model lacks are named in a warning, and the model's own stay as
  /// they are; a tensor of another shape is refused all the same. Without `optimizer_states` the masters are those of
  /// the checkpoint, whatever optimizer it was saved with, and all states begin as those of a new run.
  Json load_checkpoint(const std::string& dir, const std::string& tag = "",
                       const std::function<void(const Json& client_state)>& check = nullptr, LoadOptions options = {});
  /// Copies all that a checkpoint holds into this process's segments in shared memory, from which other processes, of
  /// whatever number and ZeRO stage, go on when some are lost. A thread copies beside the next forward and backward;
  /// the update that follows waits for it, as do functions that change values; only what forward changes is copied
  /// before this returns. Called by all ranks, between steps and outside a gather() that writes; where
  /// nothing has changed since the last call it does nothing. `folder` must outlive the engine. Throws RuntimeFault in
  /// the middle of a step, and at the first call on all ranks where shared memory has no room; a later failure is a
  /// warning, and older snapshots stay.
  void begin_snapshot(SnapshotFolder& folder, const Json& client_state = Json::object());
  /// Waits until this rank's part is sealed. Whether it is; true where none was begun.
  bool finish_snapshot();
  /// Asks for snapshots as capstan.elastic.every and overhead say, called by all ranks.
  void want_snapshots(bool on);
  /// Whether one is to be begun after the step that has ended, the same on all ranks.
  bool snapshot_due() const;
  /// CPU time and waiting that snapshots have cost this rank so far, in seconds.
  double snapshot_seconds() const;
  /// Becomes what the newest snapshot holds whose parts all are in the folders of these processes, whatever world made
  /// it. What is damaged, or of another run, is named in a warning, and an older one is taken. Returns the client
  /// state; nothing, and the engine is as before, where no snapshot is whole. Called by all ranks; otherwise as
  /// load_checkpoint.
  std::optional<Json> load_snapshot(SnapshotFolder& folder);
  /// Takes parameter values from a safetensors file, from a checkpoint of Capstan or DeepSpeed (its folder, or
  /// FOLDER:TAG), or from a folder of Hugging Face's transformers where the model knows the names there; every
  /// trainable parameter must be there with its shape. Values are converted to the training precision. Throws
  /// RuntimeFault naming what is missing or misshapen; what fails on one rank is thrown on all of them, as by
  /// load_checkpoint. Called by all ranks. Returns the client state of a checkpoint, {} of other files. Not `strict`:
  /// parameters that the file lacks are named in a warning, and stay as they are.
  Json load_weights(const std::string& file_or_folder, bool strict = true);
  /// compression_training.layer_reduction: takes the layers that the section names, and its other modules, from a
  /// deeper teacher, parameters and buffers alike: a checkpoint (its folder, or FOLDER:TAG) or a safetensors file with
  /// the model's own names. The rest of the student stays. Throws RuntimeFault naming both tensors where they do not
  /// fit; otherwise as load_weights.
  void load_teacher(const std::string& checkpoint_or_file);

  /// Holds the named parameters in memory (all of them without names), for code that uses their values outside of
  /// forward and backward: at ZeRO stage 3 they are away there, at stages 1 and 2 with overlap_comm between a step and
  /// the next forward, and reading them throws. Called by all ranks. To change values, at any stage, name the rank that
  /// writes: at the end all ranks, and the fp32 masters, take that rank's values. Throws RuntimeFault for an unknown
  /// name or rank.
  GatherScope gather(const std::vector<std::string>& names = {}, std::optional<int> written_by = std::nullopt);
  /// How many of these scopes are open. The engine must outlive them.
  std::size_t open_gathers() const;

  /// Names the run: drawn when the engine is made, and taken over with what is loaded. Rank 0's is the run's. Empty
  /// after loading what a release saved that had none.
  const std::string& run_id() const;
  const Progress& progress() const;
  const StepReport& last_step() const;
  double mean_loss() const;  // the mean loss of the last complete step
  /// The rate that the next update of group 0 uses.
  double next_lr() const;
  const Config& config() const;
  Model& model();
  /// True once a trial of `capstan tune` has measured what it was to measure (autotuning.metric_path): the program may
  /// end. Always false in other runs.
  bool trial_ended() const;
  bool at_accumulation_boundary() const;  // true when the next step() updates
  /// The program says which micro-batch is the last of its step, before its backward: true for the last one. Without a
  /// value they are counted again.
  void set_accumulation_boundary(std::optional<bool> last);
  /// The names of the model's layers where a component wraps them; empty where none does.
  std::vector<std::string> wrapped_layers() const;
  /// The parameter groups, as the next update uses them.
  std::vector<ParameterGroupView> parameter_groups() const;
  /// Names that set_group_number() takes: "lr" and the optimizer's numbers, but for those that a scheduler sets.
  std::vector<std::string> group_numbers() const;
  /// Sets a number of a group from the next update on: {0.9, 0.95} for "betas". Checkpoints hold the numbers that were
  /// set. Throws ConfigError for a number that the configuration's scheduler sets, and RuntimeFault for one that the
  /// optimizer lacks, does not allow, or takes only when the engine is made.
  void set_group_number(std::size_t group, const std::string& name, const std::vector<double>& values);
  /// Sets the number "lr".
  void set_learning_rate(std::size_t group, double rate);
  /// Updates parameters in the place of a configured optimizer, at ZeRO stage 0. Before the first step. Throws
  /// ConfigError where the configuration names an optimizer or a stage above 0.
  void set_own_optimizer(OwnOptimizer optimizer);

  int rank() const;
  int world_size() const;
  /// From any rank: asks all of them to stop. After the next complete step stop_agreed() is true on every rank.
  void ask_to_stop();
  bool stop_agreed() const;
  /// Whether any rank `asks`. Called by all ranks, between two batches of an evaluation for instance.
  bool any_rank(bool asks);
  /// Tells the other ranks why this one leaves, for their messages.
  void tell_failure(const std::string& why) noexcept;

  /// What the collectives sent and how long they took. `comms_logger` in the configuration says which calls are
  /// recorded.
  CommsLog& comms_log();
  /// The recorded calls; with `stragglers` compared over the ranks, all of which must call it then.
  CommsSummary comms_summary(bool stragglers = false);

  /// Computes the gradient norm in every step, also when neither clipping nor an overflow test needs it, unless
  /// zero_optimization.compute_grad_norm is false.
  void want_grad_norm(bool on);
  /// Where the lines of steps_per_print, wall_clock_breakdown and memory_breakdown go; default: standard output.
  void set_report_output(std::function<void(std::string_view)> output);
  /// The difficulty of a curriculum's metric, "seqlen" in the section curriculum_learning, whose schedule_type is
  /// "custom": a function of the step alone, 1 for the first. Set it before the first step.
  void set_difficulty_schedule(const std::string& metric, std::function<std::int64_t(std::int64_t step)> function);
  /// True when the configuration names a sampler, which gives samples their order in place of the program.
  bool has_sampler() const;
  /// Starts it on a data set of so many samples; once, before the first step. What a checkpoint that was loaded before
  /// keeps of it counts. Without a sampler nothing happens. Called by all ranks; throws RuntimeFault with its text, and
  /// on the others one that names the rank.
  void start_sampler(std::int64_t samples, const std::string& fingerprint = "");
  /// The samples of the step under way, or of the one to come: train_batch_size numbers. This rank's micro-batch m has
  /// those from (m * world_size() + rank()) * micro_batch_size on. The same list until step() has ended the step.
  /// Throws RuntimeFault with the sampler's text, and where the data is used up.
  std::span<const std::int64_t> step_samples();
  /// A metric for the monitors, beside the engine's own, at the current global sample.
  void write_metric(const std::string& tag, double value);
  /// A text that the model has written behind `prompt`, for the monitors, at the step and global sample of the engine.
  /// `tag`: the same for all texts of one prompt. What is not UTF-8 becomes U+FFFD.
  void write_text(const std::string& tag, const std::string& prompt, const std::string& text);
  /// Waits until the monitors have written all metrics so far.
  void flush_monitors();
  /// Configuration and run facts as `dump_state` prints them: one "name .... value" a line.
  std::string state_dump() const;

 private:
  struct State;
  friend class KeptValues;  // kept_values.hpp
  std::unique_ptr<State> state_;
};

}  // namespace capstan

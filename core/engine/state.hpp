#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/attention/sparse_attention.hpp"
#include "core/components/curvature.hpp"
#include "core/components/engine_parts.hpp"
#include "core/components/pacing.hpp"
#include "core/compression/operand_inputs.hpp"
#include "core/engine/engine.hpp"
#include "core/engine/progress_report.hpp"
#include "core/engine/step_under_way.hpp"
#include "core/engine/timers.hpp"
#include "core/engine/tuning_trial.hpp"
#include "core/keep/keep.hpp"
#include "core/memory/forward_rerun.hpp"
#include "core/memory/recompute/boundary_offload.hpp"
#include "core/memory/recompute/recomputation.hpp"
#include "core/monitor/monitor_host.hpp"

namespace capstan {

/// Everything behind an Engine: what it is built of, its steps, and what is kept of them. Members are built in this
/// order and destroyed in the reverse one.
struct Engine::State final : EngineParts, KeptSteps {
  State(Model model, const Config& config, const PluginIndex& plugins, std::shared_ptr<Communicator> communicator);
  ~State() override;

  // Building.
  void cast_buffers();
  /// Shows compressions the gradients of the step: to change them, or before an update that will be made.
  void show_gradients(bool changes);
  /// Where the inputs of recomputed layers wait.
  void open_activation_store();
  /// What went to and from all stores.
  OffloadTraffic offload_traffic() const;

  // For Keep.
  std::int64_t micro_steps_done() const override { return under_way.micro_step; }
  void moved() override { micro_steps_seen = progress.global_steps * config.batch.gradient_accumulation_steps; }
  void tell(capstan_event_kind kind) override { emit(kind); }
  MonitorHost* opened_monitors() override { return monitors.get(); }
  void renew_monitors() override;

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
  void abandon_step() override;
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
  void synchronize() override;
  void update_sub_group(const SubGroup& sub_group, const capstan_step& step);
  /// Updates with the program's own optimizer.
  void update_by_program(double grad_scale);
  bool reports_norm() const { return needs_norm(config) || want_grad_norm; }
  void stop_or_skip(const std::string& what);
  std::string first_not_finite();

  // Metrics (metrics.cpp).
  MonitorHost& open_monitors();
  void write_step_metrics(const Spans& spans);
  /// Prints the timers of the micro-batch, and adds them to the step's.
  void print_micro_timers();

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
  std::unique_ptr<TuningTrial> trial;                 // of capstan tune; null: the run is none
  Timers micro_timers, step_timers, optimizer_timers;
  ProgressReport progress_report;
  std::vector<std::string> layer_names;       // of the model, as forward runs them
  Pacing pacing;                              // of curricula whose schedule is custom
  std::map<std::string, double> recorded;     // numbers that components have of the step under way, by their whole tags
  std::map<std::string, double> told;         // numbers that components tell each other
  Curvature curvature;                        // second derivatives, for components that want them
  std::vector<Component> monitor_components;  // until they are opened
  std::unique_ptr<MonitorHost> monitors;      // from the first metric on

  std::shared_ptr<std::size_t> open_gathers = std::make_shared<std::size_t>(0);  // scopes of gather()
  std::vector<NamedTensor> frozen;  // the model's own tensors that were frozen when the engine was made

  OwnOptimizer own_optimizer;    // the program's; null: the configuration's
  std::optional<bool> boundary;  // whether the micro-batch is the last, as the program says; none: counted
  StepReport last_step;
  StepUnderWay under_way;
  std::int64_t evaluated_at = -1;     // updates when ranks were last made equal for an evaluation pass
  std::int64_t micro_steps_seen = 0;  // micro-batches since this run began
  double mean_loss = 0;               // the mean loss of the last complete step
  double data_ms = 0;                 // the time that making the next micro-batch took
  CommsLog::Traffic traffic_before;   // the current step
  OffloadTraffic offload_before;      // the current step
  bool want_grad_norm = false;
  bool stop_asked = false;   // on this rank
  bool stop_agreed = false;  // on all
  Keep keep;                 // last, because its threads use the members above
};

}  // namespace capstan

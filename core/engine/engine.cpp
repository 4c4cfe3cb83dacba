#include "core/engine/engine.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>

#include "core/comm/as_one.hpp"
#include "core/compression/unmatched_groups.hpp"
#include "core/config/component_params.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/model/batch_norm_types.hpp"
#include "core/model/dtype_names.hpp"
#include "core/model/fp32_buffers.hpp"
#include "core/model/layer_names.hpp"
#include "core/model/parameter_classes.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/registry/config_mistakes.hpp"
#include "core/registry/guilty_plugin.hpp"
#include "core/registry/host.hpp"
#include "core/zero/offload_plan.hpp"

namespace capstan {
namespace {

/// How long an engine that ends by an exception waits for the other ranks.
constexpr std::chrono::seconds kLeaving{5};

/// SGD and RMSprop have a momentum where the others have betas; the progress line shows whichever there is.
bool shows_momentum(const ParameterGroups& groups) {
  return groups.size() > 0 && groups[0].find("betas") == nullptr && groups[0].find("momentum") != nullptr;
}

}  // namespace

Engine::State::State(Model built_model, const Config& built_config, const PluginIndex& index,
                     std::shared_ptr<Communicator> ranks)
    : EngineParts(std::move(built_model), built_config, index, std::move(ranks)),
      operand_inputs(compressions.operands().empty()
                         ? nullptr
                         : std::make_unique<OperandInputs>(compressions, model.parameters(), &rerun)),
      attention(config.attention
                    ? std::make_unique<SparseAttention>(create(*config.attention), create(*config.attention_kernel),
                                                        config.attention->where, config.run.seed)
                    : nullptr),
      trial(TuningTrial::of(config, communicator->rank())),
      micro_timers(*accelerator, config.report.wall_clock_breakdown || trial),
      step_timers(*accelerator, config.report.wall_clock_breakdown || trial),
      optimizer_timers(*accelerator,
                       config.report.wall_clock_breakdown && config.zero.stage > 0 && store.sharding() != nullptr),
      progress_report(config, shows_momentum(groups)),
      keep(*this, *this) {
  host_context.store = &store;
  host_context.compressions = &compressions;
  host_context.model = &model;
  host_context.communicator = communicator.get();
  host_context.accelerator = accelerator.get();
  host_context.host = &host;
  layer_names = capstan::layer_names(model);
  observers.layers().set_names(layer_names);
  host_context.layer_names = &layer_names;
  host_context.recorded = &recorded;
  host_context.told = &told;
  host_context.curvature = &curvature;
  lend_curvature();
  host_context.pacing = &pacing;
  if (config.run.pacing) pacing.set_component(create(*config.run.pacing));
  if (config.run.sampler) sampler.emplace(create(*config.run.sampler));
  for (const NamedTensor& parameter : model.parameters()) {
    if (!parameter.tensor.requires_grad() && at::isFloatingType(parameter.tensor.scalar_type())) {
      frozen.push_back(parameter);
    }
  }
  cast_buffers();
  open_activation_store();
  // One rank writes for all.
  if (communicator->rank() > 0) config.monitors.clear();
  model.set_training(true);
  note_rank(communicator->rank(), communicator->size());
  note_step(1);
  schedule.apply(0);
  store.refresh_all();
  renew_monitors();
  emit(CAPSTAN_EVENT_INITIALIZED);
}

Engine::State::~State() {
  communicator->log().configure({}, nullptr);
  if (accelerator->is_host()) return;
  // The engine frees its memory, which other streams may get. The program's stream must have ended its work there.
  const at::Device device = accelerator->device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  try {
    guard.synchronizeStream(guard.getStream(device));
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

bool Engine::trial_ended() const { return state_->trial && state_->trial->ended(); }

void Engine::State::cast_buffers() {
  const Fp32Buffers in_fp32 = fp32_buffers(config.precision, model);
  for (const std::string& warning : in_fp32.warnings) {
    if (communicator->rank() == 0) log::warning(warning);
  }
  for (const NamedTensor& buffer : model.buffers()) {
    at::Tensor tensor = buffer.tensor;
    if (!at::isFloatingType(tensor.scalar_type())) continue;
    if (in_fp32.names.contains(buffer.name)) {
      tensor.set_data(tensor.to(at::kFloat));
    } else if (!config.precision.buffer_dtype.empty()) {
      tensor.set_data(tensor.to(dtype_named(config.precision.buffer_dtype)));
    } else if (tensor.scalar_type() == at::kDouble) {
      // Parameters of double precision are trained in fp32 at most, and a buffer of double would widen what it meets.
      tensor.set_data(tensor.to(at::kFloat));
    }
  }
  match_batch_norm_types(model);
}

void Engine::State::open_activation_store() {
  if (!config.activation_offload) return;
  activation_device = std::make_unique<OffloadDevice>(create(*config.activation_offload));
  activation_store = std::make_unique<BoundaryOffload>(*activation_device);
  recomputation.set_store(activation_store.get());
}

OffloadTraffic Engine::State::offload_traffic() const {
  OffloadTraffic traffic = store.offload_traffic();
  if (activation_device) traffic += activation_device->traffic();
  return traffic;
}

Engine::Engine(Model model, const Config& config, const PluginIndex& plugins,
               std::shared_ptr<Communicator> communicator)
    : state_(with_config_mistakes(
          [&] { return std::make_unique<State>(std::move(model), config, plugins, std::move(communicator)); })) {
  for (const std::string& line : state_->store.offload_lines()) state_->report_line(line);
  for (const std::string& line : state_->compressions.report()) state_->report_line(line);
  const std::string line = state_->progress_report.state_line(state_->progress, state_->groups);
  if (!line.empty()) state_->report_line(line);
}

Engine::~Engine() {
  if (state_) state_->close();
}

void Engine::State::close() noexcept {
  // The others may have failed as well, and not come any more.
  const bool failing = std::uncaught_exceptions() > 0;
  std::optional<Communicator::Hurry> hurry;
  if (failing) hurry.emplace(*communicator, kLeaving);
  try {
    store.settle();
  } catch (const std::exception& error) {
    if (!failing) log::warning(error.what());
  }
  recomputation.end();
  try {
    emit(CAPSTAN_EVENT_CLOSING);
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

Engine::Engine(Engine&&) noexcept = default;

void Engine::set_difficulty_schedule(const std::string& metric,
                                     std::function<std::int64_t(std::int64_t step)> function) {
  state_->pacing.set(metric, std::move(function));
}

bool Engine::has_sampler() const { return state_->sampler.has_value(); }

void Engine::start_sampler(std::int64_t samples, const std::string& fingerprint) {
  if (!state_->sampler) return;
  const Config& config = state_->config;
  const DataEfficiencyConfig& section = config.data_efficiency;
  const Sampler::Source source{
      .samples = samples,
      .fingerprint = fingerprint,
      .batch = config.batch.train_batch_size,
      .seed = section.enabled ? static_cast<std::uint64_t>(section.seed) : config.run.seed,
      .passes = section.enabled && section.data_sampling.enabled ? section.data_sampling.num_epochs : 0};
  with_config_mistakes(
      [&] { as_one(*state_->communicator, "start_sampler", [&] { state_->sampler->start(source); }); });
}

std::span<const std::int64_t> Engine::step_samples() {
  if (!state_->sampler) {
    throw RuntimeFault("the configuration names no sampler: capstan.data.sampler, or a section that switches one on.");
  }
  return with_config_mistakes([&] { return state_->sampler->of_step(state_->progress.global_steps); });
}

at::Tensor Engine::forward(Batch& batch) {
  return with_config_mistakes([&] { return state_->forward(batch); });
}
void Engine::pass(PassKind kind, Batch& batch, const std::function<void()>& run) {
  with_config_mistakes([&] { state_->pass(kind, batch, run); });
}
void Engine::backward(const at::Tensor& loss, BackwardOptions options) {
  with_config_mistakes([&] { state_->backward(loss, options); });
}
StepReport Engine::step() {
  const StepReport report = with_config_mistakes([&] { return state_->step(); });
  // Behind the update: thrown before it, the failure would leave a step that is never ended.
  state_->keep.background_save().check();
  return report;
}

void Engine::zero_grad() { state_->zero_grad(); }

double Engine::train_batch(const NextBatch& next) {
  do {
    const auto begun = std::chrono::steady_clock::now();
    Batch batch = next();
    state_->data_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
    backward(forward(batch));
    step();
  } while (state_->under_way.micro_step != 0);
  return state_->mean_loss;
}

std::string Engine::save_checkpoint(const std::string& dir, const std::string& tag, const Json& client_state,
                                    bool frozen) {
  return state_->keep.save(dir, tag, client_state, frozen);
}
bool Engine::saving() const { return state_->keep.background_save().under_way(); }
bool Engine::saved_within(std::chrono::milliseconds patience) const {
  return state_->keep.background_save().written_within(patience);
}
void Engine::finish_saving() { state_->keep.background_save().finish(); }
Json Engine::load_checkpoint(const std::string& dir, const std::string& tag,
                             const std::function<void(const Json& client_state)>& check, LoadOptions options) {
  return state_->keep.load(dir, tag, check, options);
}

Json Engine::load_weights(const std::string& file, bool strict) { return state_->keep.load_weights(file, strict); }
void Engine::load_teacher(const std::string& path) { state_->keep.load_teacher(path); }
void Engine::begin_snapshot(SnapshotFolder& folder, const Json& client_state) {
  state_->keep.begin_snapshot(folder, client_state);
}
std::optional<Json> Engine::load_snapshot(SnapshotFolder& folder) { return state_->keep.load_snapshot(folder); }
bool Engine::finish_snapshot() { return state_->keep.snapshots().finish(); }
void Engine::want_snapshots(bool on) { state_->keep.snapshots().want(on); }
bool Engine::snapshot_due() const { return state_->keep.snapshots().due(); }
double Engine::snapshot_seconds() const { return state_->keep.snapshots().seconds(); }

const std::string& Engine::run_id() const { return state_->keep.run_id(); }
const Progress& Engine::progress() const { return state_->progress; }
const StepReport& Engine::last_step() const { return state_->last_step; }
double Engine::mean_loss() const { return state_->mean_loss; }
double Engine::next_lr() const { return state_->schedule.rate(state_->progress.updates, 0); }
const Config& Engine::config() const { return state_->config; }
Model& Engine::model() { return state_->model; }
bool Engine::at_accumulation_boundary() const { return state_->at_boundary(); }
void Engine::set_accumulation_boundary(std::optional<bool> last) { state_->boundary = last; }

std::vector<std::string> Engine::wrapped_layers() const {
  return state_->observers.layers().empty() ? std::vector<std::string>() : state_->layer_names;
}

void Engine::set_own_optimizer(OwnOptimizer optimizer) {
  const Config& config = state_->config;
  if (config.optimizer) {
    throw ConfigError("optimizer: the configuration names '" + config.optimizer->type +
                      "', and the program brings an optimizer of its own. Leave one of them out.");
  }
  if (config.zero.stage > 0 || config.optimizer_offload || config.parameter_offload) {
    throw ConfigError(
        "zero_optimization: an optimizer of the program's own updates whole parameters in memory, so it runs at stage "
        "0 without offload. Name a plugin in optimizer.type (capstan plugins list --kind optimizer) to partition its "
        "states.");
  }
  if (config.precision.low_precision_masters) {
    const bool half = config.precision.compute == Precision::kFp16;
    throw ConfigError((half ? std::string("fp16.fp16") : std::string("bf16.bf16")) +
                      "_master_weights_and_grads: an optimizer of the program's own updates fp32 masters. Leave the "
                      "key out, or name a plugin in optimizer.type (capstan plugins list --kind optimizer).");
  }
  state_->own_optimizer = std::move(optimizer);
}

CommsLog& Engine::comms_log() { return state_->communicator->log(); }
CommsSummary Engine::comms_summary(bool stragglers) {
  state_->store.settle();
  return state_->communicator->comms_summary(stragglers);
}

void Engine::want_grad_norm(bool on) { state_->want_grad_norm = on && state_->config.zero.compute_grad_norm; }
void Engine::set_report_output(std::function<void(std::string_view)> output) {
  state_->report_output = std::move(output);
}
}  // namespace capstan

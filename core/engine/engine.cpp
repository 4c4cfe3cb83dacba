#include "core/engine/engine.hpp"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>

#include "core/comm/as_one.hpp"
#include "core/compression/unmatched_groups.hpp"
#include "core/config/component_params.hpp"
#include "core/engine/ranks.hpp"
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

capstan_host engine_host(EngineHostContext& context, Communicator& communicator) {
  capstan_host host = make_host();
  host.ctx = &context;
  host.rank = static_cast<std::uint32_t>(communicator.rank());
  host.world_size = static_cast<std::uint32_t>(communicator.size());
  add_engine_functions(host);
  return host;
}

/// SGD and RMSprop have a momentum where the others have betas; the progress line shows whichever there is.
bool shows_momentum(const ParameterGroups& groups) {
  return groups.size() > 0 && groups[0].find("betas") == nullptr && groups[0].find("momentum") != nullptr;
}

}  // namespace

Engine::State::State(Model built_model, const Config& built_config, const PluginIndex& index,
                     std::shared_ptr<Communicator> ranks)
    : communicator(ranks ? std::move(ranks) : Communicator::alone()),
      config(built_config),
      // One rank speaks for all.
      report_output([speaks = communicator->rank() == 0](std::string_view text) {
        if (!speaks) return;
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fputc('\n', stdout);
        std::fflush(stdout);
      }),
      plugins(index),
      host(engine_host(host_context, *communicator)),
      registry(plugins, config.plugin_sha256),
      accelerator(build_accelerator()),
      model(move_to_device(join(std::move(built_model)))),
      observers([this] {
        Observers attached;
        for (const ComponentChoice& choice : config.observers) attached.add(create(choice));
        return attached;
      }()),
      compressions(build_compressions()),
      groups(model.parameters(), config.optimizer.value_or(ComponentChoice{}), config.parameter_groups,
             [this](const std::string& name) { return compressions.parent_of(name); }),
      optimizer(config.optimizer ? std::optional<Optimizer>(create(*config.optimizer)) : std::nullopt),
      schedule(config.scheduler ? std::optional<Component>(create(*config.scheduler)) : std::nullopt, groups),
      store(model.parameters(), groups, *accelerator, store_options()),
      operand_inputs(compressions.operands().empty()
                         ? nullptr
                         : std::make_unique<OperandInputs>(compressions, model.parameters(), &rerun)),
      attention(config.attention
                    ? std::make_unique<SparseAttention>(create(*config.attention), create(*config.attention_kernel),
                                                        config.attention->where, config.run.seed)
                    : nullptr),
      scaler(config.precision),
      trial(TuningTrial::of(config, communicator->rank())),
      micro_timers(*accelerator, config.report.wall_clock_breakdown || trial),
      step_timers(*accelerator, config.report.wall_clock_breakdown || trial),
      optimizer_timers(*accelerator,
                       config.report.wall_clock_breakdown && config.zero.stage > 0 && store.sharding() != nullptr),
      progress_report(config, shows_momentum(groups)) {
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
  wants_teacher = config.compression.layer_reduction.enabled;
  // One rank writes for all.
  if (communicator->rank() > 0) config.monitors.clear();
  model.set_training(true);
  note_rank(communicator->rank(), communicator->size());
  note_step(1);
  schedule.apply(0);
  store.refresh_all();
  build_monitors();
  emit(CAPSTAN_EVENT_INITIALIZED);
}

Engine::State::~State() { communicator->log().configure({}, nullptr); }

bool Engine::trial_ended() const { return state_->trial && state_->trial->ended(); }

Model Engine::State::join(Model built_model) {
  CommsLog::Print print;
  if (communicator->rank() == 0) print = [this](const std::string& line) { report_line(line); };
  communicator->log().configure(config.comms_logger, std::move(print));
  return join_ranks(std::move(built_model), config, *communicator);
}

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

Component Engine::State::create(const ComponentChoice& choice) {
  // Corrected forms are asked for once, in the capstan section.
  const Json params = component_params(choice, config, plugins);
  return registry.create(choice.where, choice.kind, choice.type, params, &host, choice.device);
}

Compressions Engine::State::build_compressions() {
  Compressions made;
  if (config.compressions.empty()) return made;
  for (const ComponentChoice& choice : config.compressions) made.add(create(choice));
  made.plan(module_table(model, config.run.seed));
  const UnmatchedGroups unmatched = unmatched_groups(made, config);
  if (communicator->rank() == 0) {
    for (const std::string& warning : unmatched.warnings) log::warning(warning);
  }
  unmatched.mistakes.throw_if_any();
  refuse_gradient_uses(made);
  add_trained_states(made, config.run.seed, model);
  return made;
}

void Engine::State::refuse_gradient_uses(const Compressions& made) const {
  if (!made.uses_gradients() || !config.optimizer) return;
  const ComponentManifest* chosen = plugins.find("optimizer", config.optimizer->type, config.device).component;
  if (!communicates_by_itself(chosen)) return;
  throw ConfigError(
      config.optimizer->where + ": '" + config.optimizer->type +
      "' averages gradients by itself, and compression_training masks gradients before that. Choose another "
      "optimizer, or leave pruning out.");
}

ParameterStore::Options Engine::State::store_options() {
  ParameterStore::Options options;
  options.compute_dtype = compute_dtype(config.precision);
  if (config.precision.keep_batchnorm_fp32) {
    options.stays_fp32 = [classes = ParameterClasses(model)](const NamedTensor& parameter) {
      return classes.of(parameter.name).find("BatchNorm") != std::string::npos;
    };
  }
  options.sparse_gradients = config.communication.sparse_gradients;
  options.sparse_rows = takes_sparse_rows(manifest());
  options.round_masters = !config.precision.fp32_masters;
  options.accumulation_dtype = dtype_named(config.precision.grad_accum_dtype);
  options.sub_group_size = config.zero.sub_group_size;
  if (!compressions.empty()) {
    options.compressed = [this](const NamedTensor& parameter) { return compressions.compresses(parameter.name); };
    options.compress = [this](const std::string& step, CompressedParts& parts, bool fresh) {
      const bool cut = !parts.parameters.front().of_ranks.empty();
      compressions.fill(step, parts, progress.updates, fresh, cut ? communicator.get() : nullptr);
    };
    options.trained_state_of = [this](const NamedTensor& parameter) { return compressions.parent_of(parameter.name); };
  }
  if (optimizer) options.states = declared_states(optimizer->manifest(), *config.optimizer);
  // Ranks that talk to each other must all be asked once an update, about the same.
  if (communicates_by_itself(manifest())) {
    options.sub_group_size = std::numeric_limits<std::int64_t>::max();
    options.every_slot = true;
  }
  options.residency = {.max_live = config.zero.stage3_max_live_parameters,
                       .max_reuse_distance = config.zero.stage3_max_reuse_distance,
                       .prefetch = config.zero.stage3_prefetch_bucket_size};
  options.deferred = model.deferred();
  options.frozen_as_int8 = config.zero.zero_quantized_nontrainable_weights;
  options.persistent_max_elements = config.zero.stage3_param_persistence_threshold;
  options.persistent_total_elements = config.zero.stage3_model_persistence_threshold;
  options.state_dtype = [this](const StateSpec& spec) { return state_dtype(spec, config); };
  if (is_sharded(config, *communicator)) options.sharding = sharding_options();
  options.offload = offload_options();
  return options;
}

OffloadOptions Engine::State::offload_options() {
  OffloadOptions offload;
  const auto& optimizer_choice = config.optimizer_offload;
  const auto& parameter_choice = config.parameter_offload;
  if (optimizer_choice && optimizer) offload.states = std::make_shared<OffloadDevice>(create(*optimizer_choice));
  if (parameter_choice) {
    // One store where both sections mean the same one.
    const bool same = offload.states && optimizer_choice->type == parameter_choice->type &&
                      optimizer_choice->params == parameter_choice->params;
    offload.parameters = same ? offload.states : std::make_shared<OffloadDevice>(create(*parameter_choice));
  }
  offload.max_in_memory = parameter_offload_in_force(config.zero).max_in_cpu;
  const OffloadOptimizerConfig section = optimizer_offload_in_force(config.zero);
  offload.buffer_count = section.buffer_count;
  offload.ratio = section.ratio;
  offload.slots = tile_slots(section);
  offload.read_ahead = section.pipeline_read.value_or(true);
  offload.write_behind = section.pipeline_write.value_or(true);
  offload.may_cut = manifest() != nullptr && manifest()->has_trait("elementwise") && manifest()->measures == 0;
  return offload;
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
  state_->background_save.check();
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

double Engine::eval_batch(const NextBatch& next, std::int64_t micro_batches) {
  State& state = *state_;
  at::NoGradGuard no_grad;
  state.store.settle();
  state.store.settle_stores();
  state.synchronize();
  state.emit(CAPSTAN_EVENT_EVAL_BEGIN);
  state.model.set_training(false);
  double sum = 0, weight = 0;
  try {
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      Batch batch = next();
      at::Tensor value;
      state.run_pass(batch, ParameterResidency::Pass::kEvaluation, [&] { value = state.run_model(batch); });
      const double loss = value.item<double>();
      if (batch.weight == 0) continue;  // whatever the loss is, infinity too
      sum += batch.weight * loss;
      weight += batch.weight;
    }
  } catch (...) {
    state.model.set_training(true);
    throw;
  }
  state.model.set_training(true);
  const double mean = mean_over_ranks(*state.communicator, sum, weight);
  write_metric("Train/Samples/eval_loss", mean);
  state.emit(CAPSTAN_EVENT_EVAL_END);
  return mean;
}

std::string Engine::save_checkpoint(const std::string& dir, const std::string& tag, const Json& client_state,
                                    bool frozen) {
  return state_->save(dir, tag, client_state, frozen);
}
bool Engine::saving() const { return state_->background_save.under_way(); }
bool Engine::saved_within(std::chrono::milliseconds patience) const {
  return state_->background_save.written_within(patience);
}
void Engine::finish_saving() { state_->background_save.finish(); }
Json Engine::load_checkpoint(const std::string& dir, const std::string& tag,
                             const std::function<void(const Json& client_state)>& check, bool strict) {
  return state_->load(dir, tag, check, strict);
}

const std::string& Engine::run_id() const { return state_->run_id; }
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
void Engine::State::report_line(const std::string& text) { report_output(text); }

}  // namespace capstan

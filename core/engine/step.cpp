// One optimizer step: micro-batches -> overflow check and norm in one pass -> clip -> update -> schedule -> events.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/host_words.hpp"
#include "core/log.hpp"
#include "core/memory/recompute/activation_memory.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/model/dtype_names.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/precision/autocast.hpp"
#include "core/registry/guilty_plugin.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

/// The value of a loss that lies in this process's memory, where reading it waits for nothing; nothing for another one.
/// No operator is called, because each takes longer than the rest of what the engine does for a small model's loss.
std::optional<double> value_at_hand(const at::Tensor& loss) {
  const bool plain = loss.is_cpu() && loss.layout() == at::kStrided && !loss.is_neg() &&
                     !loss.unsafeGetTensorImpl()->is_python_dispatch();
  if (!plain) return std::nullopt;
  switch (loss.scalar_type()) {
    case at::kFloat:
      return *loss.const_data_ptr<float>();
    case at::kDouble:
      return *loss.const_data_ptr<double>();
    case at::kBFloat16:
      return static_cast<float>(*loss.const_data_ptr<at::BFloat16>());
    case at::kHalf:
      return static_cast<float>(*loss.const_data_ptr<at::Half>());
    default:
      return std::nullopt;
  }
}

}  // namespace

void Engine::State::emit(capstan_event_kind kind, const at::Tensor* loss, bool skipped) {
  if (observers.empty()) return;
  capstan_event event{};
  event.struct_size = sizeof event;
  event.kind = kind;
  event.global_step = progress.global_steps;
  event.update_index = progress.updates;
  event.micro_step = under_way.micro_step;
  event.global_samples = progress.global_samples;
  event.grad_norm = last_step.grad_norm;
  event.loss = loss ? handle_of(*loss) : nullptr;
  event.skipped = skipped;
  std::optional<InterceptorScope> scope;  // they may look at parameters
  if (OperatorPolicy* policy = store.operator_policy()) scope.emplace(*policy);
  observers.emit(event);
}

void Engine::State::run_in_precision(const std::function<void()>& run) const {
  const PrecisionConfig& precision = config.precision;
  const AutocastScope autocast(
      accelerator->device().type(),
      precision.autocast_dtype.empty() ? std::nullopt : std::optional(dtype_named(precision.autocast_dtype)));
  run();
}

at::Tensor Engine::State::run_model(Batch& batch) {
  at::Tensor loss;
  run_in_precision([&] { loss = model.forward(batch); });
  const std::string& dtype = config.precision.output_dtype;
  return dtype.empty() ? loss : loss.to(dtype_named(dtype));
}

void Engine::State::refuse_unused_operands() const {
  if (!operand_inputs || micro_steps_seen > 0) return;
  std::map<std::string, std::string> names;  // by who plans the modules' inputs
  for (const std::string& module : operand_inputs->unused()) {
    std::string& list = names[compressions.planner_of(module)];
    list += (list.empty() ? "'" : ", '") + module + "'";
  }
  std::string text;
  for (const auto& [planner, modules] : names) {
    text += (text.empty() ? "" : " ") + planner + ": the inputs of " + modules +
            " are to be compressed, but no linear layer or convolution used the weights of these modules in the first "
            "forward. Leave them out.";
  }
  if (!text.empty()) throw RuntimeFault(text);
}

void Engine::State::begin_forward(Batch& batch, bool of_model) {
  refuse_unfinished_step();
  keep.refuse_without_teacher();
  refuse_unfrozen();
  if (under_way.micro_step == 0) {
    observers.layers().take_left_out();  // of a step that was given up
    observers.layers().forget_calls();
    progress_report.step_begins();
    if (trial) trial->step_begins(*accelerator);
    traffic_before = communicator->log().total();
    offload_before = offload_traffic();
    emit(CAPSTAN_EVENT_STEP_BEGIN);
  }
  emit(CAPSTAN_EVENT_FORWARD_BEGIN);
  if (of_model || sampler || !observers.empty()) place_batch(batch);
  if (sampler) change_by_sampler(batch);
  observers.change_batch(batch);
}

void Engine::State::run_training_pass(Batch& batch, const std::function<void()>& run) {
  batch.layers = observers.layers().empty() ? nullptr : &observers.layers();
  try {
    run_pass(batch, ParameterResidency::Pass::kTraining, run);
  } catch (...) {
    compressions.forget_micro_batch();
    batch.recomputation = nullptr;
    throw;
  }
  if (batch.layers != nullptr) batch_of_backward = batch;
  batch.layers = nullptr;
  refuse_unused_operands();
  ++under_way.passes;
}

at::Tensor Engine::State::forward(Batch& batch) {
  const Timers::Span span(micro_timers, "fwd");
  begin_forward(batch, /*of_model=*/true);
  if (next_is_last()) curvature.keep(batch);
  at::Tensor loss;
  run_training_pass(batch, [&] { loss = run_model(batch); });
  if (loss.numel() != 1) {
    throw RuntimeFault("model '" + model.description() +
                       "': forward must return a scalar loss, got a tensor of shape " + c10::str(loss.sizes()) +
                       ". Reduce it, with mean() for instance.");
  }
  emit(CAPSTAN_EVENT_FORWARD_END, &loss);
  if (trial) trial->forward_ends(model, *accelerator);
  if (config.report.memory_breakdown) report_line(memory_line("after forward", accelerator->memory()));
  return loss;
}

void Engine::State::pass(PassKind kind, Batch& batch, const std::function<void()>& run) {
  const auto in_precision = [&] { run_in_precision(run); };
  if (kind == PassKind::kTraining) {
    const Timers::Span span(micro_timers, "fwd");
    begin_forward(batch, /*of_model=*/false);
    run_training_pass(batch, in_precision);
    emit(CAPSTAN_EVENT_FORWARD_END);
    return;
  }
  const at::NoGradGuard no_grad;
  store.settle();
  store.settle_stores();
  if (evaluated_at != progress.updates) synchronize();
  evaluated_at = progress.updates;
  // A forward that waits for its backward goes on being the pass of the parameters that backward is about to use.
  const bool between = under_way.passes > 0;
  run_pass(batch, between ? ParameterResidency::Pass::kTraining : ParameterResidency::Pass::kEvaluation, in_precision);
}

template <class Layers>
std::vector<std::size_t> Engine::State::entries_of(const Layers& layers) {
  std::vector<std::size_t> found;
  for (const std::string& layer : layers) {
    for (std::size_t i = 0; i < store.entries().size(); ++i) {
      if (store.entries()[i].name.starts_with(layer + ".")) found.push_back(i);
    }
  }
  return found;
}

void Engine::State::give_zeros_to_left_out() { store.give_zeros(entries_of(observers.layers().take_left_out())); }

void Engine::State::change_by_sampler(Batch& batch) {
  if (sampler->started()) return sampler->change(batch);
  if (micro_steps_seen > 0 || communicator->rank() > 0) return;
  log::warning(config.run.sampler->where + ": the sampler '" + config.run.sampler->type +
               "' has no effect, because this program chooses samples itself. Call " + engine_call("start_sampler") +
               ", and take those that " + engine_call("step_samples") + " gives.");
}

void Engine::State::place_batch(Batch& batch) const {
  batch.numbers.insert_or_assign("global_step", static_cast<double>(progress.global_steps));
  batch.numbers.insert_or_assign("micro_step", static_cast<double>(under_way.micro_step));
  if (batch.tensors.contains("sample_position")) return;
  const std::int64_t rows = config.batch.micro_batch_size;
  const std::int64_t first =
      progress.global_samples + (under_way.micro_step * communicator->size() + communicator->rank()) * rows;
  batch.tensors.emplace("sample_position", at::arange(first, first + rows, at::kLong));
}

void Engine::State::run_pass(Batch& batch, ParameterResidency::Pass pass, const std::function<void()>& run) {
  keep.refuse_half_loaded();
  model.check(batch);
  for (auto& [name, tensor] : batch.tensors) tensor = accelerator->upload(tensor);
  std::optional<InterceptorScope> scope;
  store.begin_forward(step_name(), pass);
  rerun.begin_forward();
  forward_policies = {};
  if (OperatorPolicy* policy = store.operator_policy()) forward_policies.add(*policy);
  // First, while operands are still parameters: modules are known by their weights.
  if (operand_inputs) {
    const bool training = pass == ParameterResidency::Pass::kTraining;
    operand_inputs->begin(progress.updates, training, /*first=*/under_way.passes == 0);
    if (training) compressions.begin_micro_batch();
    forward_policies.add(*operand_inputs);
  }
  if (attention) {
    attention->begin_forward();
    forward_policies.add(*attention);
  }
  if (!forward_policies.empty()) scope.emplace(forward_policies);
  if (pass == ParameterResidency::Pass::kTraining) begin_recomputation(batch);
  run();
  recomputation.end_forward();
  batch.recomputation = nullptr;
  scope.reset();
  store.end_forward(pass);
  if (attention) {
    const std::optional<std::string> said = attention->end_forward();
    if (said && communicator->rank() == 0) log::info(*said);
  }
}

void Engine::State::note_loss(const at::Tensor& loss) {
  under_way.losses.resize(static_cast<std::size_t>(under_way.micro_step));
  NotedLoss& noted = under_way.losses.emplace_back();
  if (const auto value = value_at_hand(loss)) {
    noted.value = *value;
    return;
  }
  // To read it here would keep this thread from launching backward until forward is done.
  noted.on_device = loss.detach().reshape({}).to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

void Engine::State::read_losses() {
  std::vector<at::Tensor> waiting;
  for (const NotedLoss& loss : under_way.losses) {
    if (loss.on_device.defined()) waiting.push_back(loss.on_device);
  }
  if (!waiting.empty()) {
    const at::Tensor values = at::stack(waiting).cpu();
    const double* value = values.const_data_ptr<double>();
    for (NotedLoss& loss : under_way.losses) {
      if (loss.on_device.defined()) loss.value = *value++;
    }
  }
  for (std::size_t i = 0; i < under_way.losses.size(); ++i) {
    const double value = under_way.losses[i].value;
    under_way.loss_sum += value;
    if (under_way.loss_finite && !std::isfinite(value)) {
      under_way.loss_finite = false;
      under_way.bad_micro_step = static_cast<std::int64_t>(i);
    }
  }
  under_way.losses.clear();
}

bool Engine::State::at_boundary() const {
  return boundary ? *boundary && under_way.micro_step > 0
                  : under_way.micro_step >= config.batch.gradient_accumulation_steps;
}

bool Engine::State::next_is_last() const {
  return boundary.value_or(under_way.micro_step + 1 == config.batch.gradient_accumulation_steps);
}

void Engine::State::backward(const at::Tensor& loss, BackwardOptions options) {
  if (!loss.requires_grad()) {
    throw RuntimeFault("model '" + model.description() +
                       "': the loss depends on no trainable parameter, so there is nothing to train. Does forward run "
                       "under no_grad, or is every parameter frozen?");
  }
  refuse_unfinished_step();
  const std::int64_t micro_steps = config.batch.gradient_accumulation_steps;
  if (!boundary && under_way.micro_step >= micro_steps) {
    throw RuntimeFault("backward: " + step_name() + " has had its " + std::to_string(micro_steps) +
                       (micro_steps == 1 ? " micro-batch" : " micro-batches") +
                       " (gradient_accumulation_steps). Call step() before the next.");
  }
  under_way.unfinished = "backward";
  {
    const Timers::Span span(micro_timers, "bwd");
    emit(CAPSTAN_EVENT_BACKWARD_BEGIN, &loss);
    note_loss(options.over_accumulation ? loss : loss.detach().mul(static_cast<double>(micro_steps)));
    // The mean over micro-batches and the loss scale, as the seed of backward: the same as scaling the loss.
    const double seed = scaler.scale() / (options.over_accumulation ? static_cast<double>(micro_steps) : 1);
    const std::string name =
        step_name() + (micro_steps > 1 ? ", micro-batch " + std::to_string(under_way.micro_step) : "");
    if (under_way.micro_step == 0) under_way.local_gradients = wants_local_gradients();
    store.begin_backward(name, next_is_last(), under_way.local_gradients, entries_of(observers.layers().never_ran()));
    const double exchanging = communicator->log().total().milliseconds;
    {
      const Timers::Span inner(micro_timers, "bwd_inner");
      std::optional<InterceptorScope> scope;
      if (OperatorPolicy* policy = policy_of_backward()) scope.emplace(*policy);
      std::optional<BatchRerunScope> layers;
      if (batch_of_backward.layers != nullptr) layers.emplace(rerun, batch_of_backward);
      std::optional<ActivationMemoryScope> memory;
      if (recomputation.waits()) memory.emplace();
      loss.backward(seed == 1.0 ? at::Tensor() : at::full_like(loss, seed), options.retain_graph);
    }
    // What is exchanged on this thread is no part of autograd; what another exchanges meanwhile costs it nothing.
    if (micro_timers.on() && communicator->size() > 1 && !config.zero.overlap_comm) {
      micro_timers.add("bwd_inner", exchanging - communicator->log().total().milliseconds);
    }
    batch_of_backward = {};
    at::NoGradGuard no_grad;
    store.end_backward();
    observers.layers().forget_calls();
    if (micro_timers.on() && communicator->size() > 1) {
      micro_timers.add("bwd_allreduce", communicator->log().total().milliseconds - exchanging);
    }
    if (micro_timers.on() && data_ms > 0) micro_timers.add("data", std::exchange(data_ms, 0));
    under_way.unfinished = nullptr;
    if (operand_inputs) compressions.keep_micro_batch();
    under_way.passes = 0;
    ++under_way.micro_step;
    ++micro_steps_seen;
    emit(CAPSTAN_EVENT_BACKWARD_END);
  }
  if (config.report.memory_breakdown) report_line(memory_line("after backward", accelerator->memory()));
}

void Engine::State::update_sub_group(const SubGroup& sub_group, const capstan_step& step) {
  store.acquire(sub_group);
  const auto& slots = store.slots(sub_group);
  const std::vector<double> totals = measure(sub_group, slots, step);
  optimizer->update(slots, step, totals, communicator->rank());
  store.refresh(sub_group);
  store.release(sub_group, true);
}

capstan_step Engine::State::step_of_update(double grad_scale) {
  capstan_step step{};
  step.struct_size = sizeof step;
  step.update_index = progress.updates;
  step.grad_scale = grad_scale;
  step.groups = groups.pointers().data();
  step.group_count = groups.size();
  step.model_state = store.model_state().data();
  step.model_state_count = store.model_state().size();
  return step;
}

void Engine::State::update_by_program(double grad_scale) {
  std::vector<OwnSlot> slots;
  for (std::size_t i = 0; i < store.entries().size(); ++i) {
    ParameterEntry& entry = store.entries()[i];
    if (!store.has_gradient(i) || !entry.gradient().defined()) continue;
    at::Tensor gradient = entry.gradient().detach().to(at::kFloat);
    if (grad_scale != 1) gradient = gradient.mul(grad_scale);
    slots.push_back({entry.name, entry.master.view(entry.shape), gradient.view(entry.shape)});
  }
  own_optimizer(slots);
  ++progress.updates;
  store.set_initial(false);
  for (const SubGroup& sub_group : store.sub_groups()) store.refresh(sub_group);
}

void Engine::State::update(double grad_scale) {
  if (own_optimizer) return update_by_program(grad_scale);
  schedule.check(progress.updates);
  if (progress.updates == 0) store.start_states();
  capstan_step step = step_of_update(grad_scale);
  const std::vector<double> model_totals = measure_model(step);
  if (!model_totals.empty()) step.model_totals = model_totals.data();
  ++progress.updates;
  store.set_initial(false);
  {
    const Timers::Span span(optimizer_timers, "optimizer_step");
    for (const SubGroup& sub_group : store.sub_groups()) update_sub_group(sub_group, step);
  }
  store.compress(step_name());
  const Timers::Span span(optimizer_timers, "optimizer_allgather");
  store.share(step_name());
}

StepReport Engine::State::step() {
  refuse_unfinished_step();
  if (under_way.micro_step == 0) {
    throw RuntimeFault("step() without a micro-batch: call forward and engine.backward(loss) first.");
  }
  if (!at_boundary()) {
    print_micro_timers();
    return last_step;
  }
  if (!optimizer && !own_optimizer) {
    throw ConfigError(
        "optimizer: step() needs one, and the configuration has none. Add \"optimizer\": {\"type\": "
        "\"AdamW\"}, or use eval_batch only.");
  }
  at::NoGradGuard no_grad;
  bool applied = false;
  // Losses and gradients are read once: what ends here by an exception cannot be tried again.
  under_way.unfinished = "update";
  {
    const Timers::Span span(micro_timers, "step");
    StepReport report;
    double grad_scale = 1;
    {
      const Timers::Span gradients(optimizer_timers, "optimizer_gradients");
      give_zeros_to_left_out();
      if (compressions.uses_gradients()) show_gradients(/*changes=*/true);
      agree_on_step(reports_norm());
      compressions.settle(progress.updates);
      applied = check_and_measure(report, grad_scale);
      if (applied && compressions.uses_gradients()) show_gradients(/*changes=*/false);
    }
    report.applied = applied;
    last_step = report;
    begin_update(applied);
    if (applied) update(grad_scale);
    const capstan_group& group = groups[0];
    last_step.lr = group.find("lr")->front();
    const auto* momentum = group.find("betas") ? group.find("betas") : group.find("momentum");
    last_step.momentum = momentum ? momentum->front() : 0.0;
    store.drop_gradients(applied);
    emit(CAPSTAN_EVENT_UPDATE_END, nullptr, !applied);
  }
  finish_step(applied);
  return last_step;
}

void Engine::State::begin_update(bool applied) {
  std::optional<Curvature::Window> window;
  if (applied && curvature.wanted()) window.emplace(curvature, step_name(), scaler.scale());
  emit(CAPSTAN_EVENT_UPDATE_BEGIN, nullptr, !applied);
}

void Engine::State::show_gradients(bool changes) {
  store.settle();
  store.show_gradients(step_name(), changes, [&](CompressedParts& parts) {
    Communicator* ranks = parts.parameters.front().of_ranks.empty() ? nullptr : communicator.get();
    const double scale = 1 / scaler.scale();
    if (changes) {
      compressions.change_gradients(step_name(), parts, scale, progress.updates, ranks);
    } else {
      compressions.before_update(step_name(), parts, scale, progress.updates, ranks);
    }
  });
}

void Engine::State::print_micro_timers() {
  if (!micro_timers.on()) return;
  const Spans spans = micro_timers.take();
  if (config.report.wall_clock_breakdown) report_line(timers_line(0, spans, "_microstep"));
  for (const auto& [name, milliseconds] : spans) step_timers.add(name, milliseconds);
}

void Engine::State::finish_step(bool applied) {
  const bool overflow = under_way.overflow;
  under_way = {};
  ++progress.global_steps;
  progress.skipped_steps += applied ? 0 : 1;
  progress.global_samples += config.batch.train_batch_size;
  scaler.update(overflow);
  // What is shown and written is the rate of the next update.
  if (optimizer) schedule.apply(progress.updates);

  print_micro_timers();
  if (optimizer_timers.on()) report_line(timers_line(0, optimizer_timers.take(), ""));
  const Spans spans = step_timers.take();
  if (config.report.wall_clock_breakdown) report_line(timers_line(0, spans, ""));
  write_step_metrics(spans);
  recorded.clear();
  emit(CAPSTAN_EVENT_STEP_END, nullptr, !applied);
  if (config.report.memory_breakdown) report_line(memory_line("after step", accelerator->memory()));
  const std::string lines = progress_report.step_ends(progress, micro_steps_seen, groups, *accelerator);
  if (!lines.empty()) report_line(lines);
  if (trial) trial->step_ends(progress.global_steps - 1, spans, *accelerator);
  note_step(progress.global_steps + 1);
}

}  // namespace capstan

// One optimizer step: micro-batches -> overflow check and norm in one pass -> clip -> update -> schedule -> events.

#include <ATen/core/grad_mode.h>

#include <optional>

#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/guilty_plugin.hpp"

namespace capstan {

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

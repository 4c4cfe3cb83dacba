// One pass through the model: what a micro-batch meets before, in and after forward.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <map>
#include <optional>

#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/host_words.hpp"
#include "core/log.hpp"
#include "core/loss/loss_chunk.hpp"
#include "core/model/dtype_names.hpp"
#include "core/model/read_tensors.hpp"
#include "core/precision/autocast.hpp"

namespace capstan {

void Engine::State::run_in_precision(const std::function<void()>& run) const {
  const PrecisionConfig& precision = config.precision;
  const AutocastScope autocast(
      accelerator->device().type(),
      precision.autocast_dtype.empty() ? std::nullopt : std::optional(dtype_named(precision.autocast_dtype)));
  const LossChunkScope chunk(config.run.loss_chunk);
  run();
}

at::Tensor Engine::State::run_model(Batch& batch) {
  at::Tensor loss;
  run_in_precision([&] { loss = model.forward(batch); });
  const std::string& dtype = config.precision.output_dtype;
  return dtype.empty() ? loss : loss.to(dtype_named(dtype));
}

void Engine::State::place_batch(Batch& batch) const {
  batch.numbers.insert_or_assign("global_step", static_cast<double>(progress.global_steps));
  batch.numbers.insert_or_assign("micro_step", static_cast<double>(under_way.micro_step));
  if (batch.tensors.contains("sample_position")) return;
  const std::int64_t rows = config.batch.micro_batch_size;
  const std::int64_t first =
      progress.global_samples + (under_way.micro_step * communicator->size() + communicator->rank()) * rows;
  batch.tensors.emplace("sample_position", at::arange(first, first + rows, host_options(at::kLong)));
}

void Engine::State::change_by_sampler(Batch& batch) {
  if (sampler->started()) return sampler->change(batch);
  if (micro_steps_seen > 0 || communicator->rank() > 0) return;
  log::warning(config.run.sampler->where + ": the sampler '" + config.run.sampler->type +
               "' has no effect, because this program chooses samples itself. Call " + engine_call("start_sampler") +
               ", and take those that " + engine_call("step_samples") + " gives.");
}

void Engine::State::run_pass(Batch& batch, ParameterResidency::Pass pass, const std::function<void()>& run) {
  keep.refuse_half_loaded();
  if (micro_steps_seen == 0) refuse_unread_documents(batch, model);
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

}  // namespace capstan

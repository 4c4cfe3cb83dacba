// The backward of a micro-batch.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>

#include <optional>

#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/loss/loss_chunk.hpp"
#include "core/memory/recompute/activation_memory.hpp"

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

bool Engine::State::at_boundary() const {
  return boundary ? *boundary && under_way.micro_step > 0
                  : under_way.micro_step >= config.batch.gradient_accumulation_steps;
}

bool Engine::State::next_is_last() const {
  return boundary.value_or(under_way.micro_step + 1 == config.batch.gradient_accumulation_steps);
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
      const LossChunkScope chunk(config.run.loss_chunk);  // of a head that autograd runs again
      std::optional<ActivationMemoryScope> memory;
      if (recomputation.waits()) memory.emplace();
      loss.backward(seed == 1.0 ? at::Tensor() : at::full_like(loss, seed), options.retain_graph);
    }
    // The time of autograd leaves out exchanges on this thread. Exchanges on another thread do not delay autograd.
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

}  // namespace capstan

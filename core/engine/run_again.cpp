// What operators run under that run once more: in regions of activation checkpointing, in functions that autograd runs
// again, and for second derivatives.

#include "core/engine/state.hpp"
#include "core/loss/loss_chunk.hpp"

namespace capstan {

OperatorPolicy* Engine::State::policy_of_backward() {
  rerun.begin_backward();
  OperatorPolicy* always = store.operator_policy();
  if (!operand_inputs && !attention) return always;
  policies_run_again = {};
  if (operand_inputs) policies_run_again.add(*operand_inputs);
  if (attention) policies_run_again.add(*attention);
  backward_policies.emplace(rerun, always, policies_run_again);
  return &*backward_policies;
}

at::Tensor Engine::State::forward_again(Batch& batch) {
  for (auto& [name, tensor] : batch.tensors) tensor = accelerator->upload(tensor);
  OperatorPolicies policies;
  // No pass begins: parameters come at each use, and the trace of training stays as it is.
  if (OperatorPolicy* policy = store.operator_policy()) policies.add(*policy);
  if (operand_inputs) {
    compressions.begin_micro_batch();
    operand_inputs->begin(progress.updates, /*training=*/true);
    policies.add(*operand_inputs);
  }
  if (attention) policies.add(*attention);
  std::optional<InterceptorScope> scope;
  if (!policies.empty()) scope.emplace(policies);
  batch.layers = observers.layers().empty() ? nullptr : &observers.layers();
  batch.recomputation = nullptr;
  const LossChunkScope all_logits(0);  // what is made of chunks would be made once more for second derivatives
  try {
    at::Tensor loss = model.forward(batch);
    compressions.abandon_step();  // what components have seen of inputs, they have seen twice
    return loss;
  } catch (...) {
    compressions.abandon_step();
    throw;
  }
}

void Engine::State::lend_curvature() {
  Curvature::Engine lent;
  lent.forward = [this](Batch& batch) { return forward_again(batch); };
  lent.generators = [this] { return generators(); };
  for (const NamedTensor& buffer : model.buffers()) lent.buffers.push_back(buffer.tensor);
  lent.store = &store;
  lent.ranks = communicator.get();
  curvature.set_engine(std::move(lent));
}

void Engine::State::begin_recomputation(Batch& batch) {
  replay_policies = {};
  if (OperatorPolicy* policy = store.operator_policy()) replay_policies.add(*policy);
  if (attention) replay_policies.add(*attention);
  Recomputation::Policies policies;
  policies.outside = operand_inputs.get();
  policies.inside = replay_policies.empty() ? nullptr : &replay_policies;
  policies.whole = operand_inputs || attention;
  recomputation.begin_forward(policies, micro_steps_seen == 0);
  batch.recomputation = &recomputation;
}

}  // namespace capstan

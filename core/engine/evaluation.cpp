// Passes of batches that nothing is trained on: the mean loss, and named outputs.

#include <ATen/core/grad_mode.h>

#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

/// The mean over all ranks of sums of weighted losses; 0 when there are none.
double mean_over_ranks(Communicator& communicator, double sum, double weight) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < communicator.size(); ++rank) parts.push_back(host_empty({2}, at::kDouble));
  auto* mine = parts[static_cast<std::size_t>(communicator.rank())].mutable_data_ptr<double>();
  mine[0] = sum;
  mine[1] = weight;
  communicator.all_gather("evaluation", parts);
  double total = 0, all = 0;
  for (const at::Tensor& part : parts) {
    total += part.const_data_ptr<double>()[0];
    all += part.const_data_ptr<double>()[1];
  }
  return all > 0 ? total / all : 0.0;
}

/// Calls `run` with the model in evaluation mode.
void in_evaluation_mode(Model& model, const std::function<void()>& run) {
  model.set_training(false);
  try {
    run();
  } catch (...) {
    model.set_training(true);
    throw;
  }
  model.set_training(true);
}

}  // namespace

double Engine::eval_batch(const NextBatch& next, std::int64_t micro_batches) {
  State& state = *state_;
  at::NoGradGuard no_grad;
  state.store.settle();
  state.store.settle_stores();
  state.synchronize();
  state.emit(CAPSTAN_EVENT_EVAL_BEGIN);
  double sum = 0, weight = 0;
  in_evaluation_mode(state.model, [&] {
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      Batch batch = next();
      at::Tensor value;
      state.run_pass(batch, ParameterResidency::Pass::kEvaluation, [&] { value = state.run_model(batch); });
      const double loss = value.item<double>();
      if (batch.weight == 0) continue;  // whatever the loss is, infinity too
      sum += batch.weight * loss;
      weight += batch.weight;
    }
  });
  const double mean = mean_over_ranks(*state.communicator, sum, weight);
  write_metric("Train/Samples/eval_loss", mean);
  state.emit(CAPSTAN_EVENT_EVAL_END);
  return mean;
}

std::map<std::string, at::Tensor> Engine::outputs(Batch& batch) {
  std::map<std::string, at::Tensor> outputs;
  in_evaluation_mode(state_->model,
                     [&] { pass(PassKind::kEvaluation, batch, [&] { outputs = state_->model.outputs(batch); }); });
  return outputs;
}

}  // namespace capstan

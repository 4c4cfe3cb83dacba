// The mean loss over batches that nothing is trained on.

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

}  // namespace

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

}  // namespace capstan

// The exchange between ranks that ends a step, and the numbers that each rank brings to it.

#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>

#include "core/engine/state.hpp"
#include "core/host_tensor.hpp"

namespace capstan {

std::string Engine::State::step_name() const { return "step " + std::to_string(progress.global_steps); }

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

void Engine::State::agree_on_step(bool norm) {
  read_losses();
  // Once all ranks have come here, all have sealed what they had begun.
  const bool lost = !keep.snapshots().finish();
  const bool due = communicator->rank() == 0 && keep.snapshots().is_due(progress.global_steps + 1);
  const RankReport own{under_way.loss_sum, under_way.loss_finite, under_way.bad_micro_step, stop_asked, due, lost};
  std::vector<RankReport> reports = {own};
  if (store.sharding()) {
    const StepAgreement agreement = store.sharding()->exchange(step_name(), own.pack(), norm);
    reports.clear();
    for (const std::vector<double>& numbers : agreement.numbers) reports.push_back(RankReport::unpack(numbers));
    under_way.squares = agreement.squares;
    store.set_present(agreement.present);
  }
  under_way.loss_sum = 0;
  under_way.bad_losses.clear();
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const RankReport& report = reports[rank];
    under_way.loss_sum += report.loss_sum;
    if (!report.loss_finite) under_way.bad_losses.push_back({static_cast<int>(rank), report.bad_micro_step});
    stop_agreed = stop_agreed || report.stop_asked;
  }
  const auto any = [&](bool RankReport::*flag) {
    return std::any_of(reports.begin(), reports.end(), [&](const RankReport& report) { return report.*flag; });
  };
  keep.snapshots().agree(any(&RankReport::snapshot_due), !any(&RankReport::snapshot_lost));
  mean_loss =
      under_way.loss_sum / static_cast<double>((under_way.micro_step - under_way.dropped) * communicator->size());
}

int Engine::rank() const { return state_->communicator->rank(); }
int Engine::world_size() const { return state_->communicator->size(); }
void Engine::ask_to_stop() { state_->stop_asked = true; }
bool Engine::stop_agreed() const { return state_->stop_agreed; }
bool Engine::any_rank(bool asks) {
  if (world_size() == 1) return asks;
  at::Tensor count = host_empty({1}, at::kLong).fill_(asks ? 1 : 0);
  state_->communicator->all_reduce_exact("any rank", count);
  return count.item<std::int64_t>() > 0;
}
void Engine::tell_failure(const std::string& why) noexcept { state_->communicator->tell_failure(why); }

}  // namespace capstan

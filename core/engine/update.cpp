// The update of the parameters, by the configuration's optimizer or by the program's own.

#include <cmath>

#include "core/engine/state.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/parameters/slot_blocks.hpp"

namespace capstan {

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

bool Engine::State::wants_local_gradients() {
  return communicator->size() > 1 && communicates_by_itself(manifest()) &&
         optimizer->takes_local_gradients(progress.updates);
}

void Engine::State::synchronize() {
  if (!communicates_by_itself(manifest()) || !optimizer->synchronizes()) return;
  for (const SubGroup& sub_group : store.sub_groups()) store.acquire(sub_group);
  optimizer->synchronize(store.slots_without_gradients(), step_of_update(1.0));
  for (const SubGroup& sub_group : store.sub_groups()) store.release(sub_group, true);
  store.refresh_all();
}

std::vector<double> Engine::State::measure(const SubGroup& sub_group, const std::vector<const capstan_slot*>& slots,
                                           const capstan_step& step) {
  const auto width = static_cast<std::size_t>(optimizer->manifest().measures);
  if (width == 0) return {};
  const SlotBlocks blocks(slots, store.states());
  std::vector<double> totals =
      store.sum_measures(step_name() + ", measures", sub_group, optimizer->measure(blocks.slots(), step), width);
  for (std::size_t i = 0; i < totals.size(); ++i) {
    if (std::isfinite(totals[i])) continue;
    const std::string of = "parameter '" + std::string(as_view(slots[i / width]->name)) + "'";
    optimizer->refuse_total(totals[i], i % width, of, step.update_index);
  }
  return totals;
}

std::vector<double> Engine::State::measure_model(const capstan_step& step) {
  const auto width = static_cast<std::size_t>(optimizer->manifest().measures_model);
  if (width == 0) return {};
  std::vector<double> per_block;
  for (const SubGroup& sub_group : store.sub_groups()) {
    store.acquire(sub_group);
    const SlotBlocks blocks(store.slots(sub_group), store.states());
    const std::vector<double> partials = optimizer->measure_model(blocks.slots(), step);
    per_block.insert(per_block.end(), partials.begin(), partials.end());
    store.release(sub_group, false);
  }
  std::vector<double> totals = store.sum_model_measures(step_name() + ", measures of the model", per_block, width);
  for (std::size_t k = 0; k < width; ++k) {
    if (!std::isfinite(totals[k])) optimizer->refuse_total(totals[k], k, "the model", step.update_index);
  }
  return totals;
}

void Engine::State::update_sub_group(const SubGroup& sub_group, const capstan_step& step) {
  store.acquire(sub_group);
  const auto& slots = store.slots(sub_group);
  const std::vector<double> totals = measure(sub_group, slots, step);
  optimizer->update(slots, step, totals, communicator->rank());
  store.refresh(sub_group, progress.updates);
  store.release(sub_group, true);
}

void Engine::State::update_by_program(double grad_scale) {
  std::vector<OwnSlot> slots;
  for (std::size_t i = 0; i < store.entries().size(); ++i) {
    const ParameterEntry& entry = store.entries()[i];
    const at::Tensor* collected = store.gradients().collected(i);
    if (!store.has_gradient(i) || collected == nullptr) continue;
    at::Tensor gradient = collected->detach().to(at::kFloat);
    if (grad_scale != 1) gradient = gradient.mul(grad_scale);
    slots.push_back({entry.name, entry.master.view(entry.shape), gradient.view(entry.shape)});
  }
  own_optimizer(slots);
  ++progress.updates;
  store.set_initial(false);
  for (const SubGroup& sub_group : store.sub_groups()) store.refresh(sub_group, progress.updates);
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

}  // namespace capstan

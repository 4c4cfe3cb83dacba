#include "core/checkpoint/deepspeed/optimizer_members.hpp"

#include <ATen/ops/full.h>

#include "core/host_tensor.hpp"

namespace capstan::deepspeed {

OptimizerMembers members_of(const TorchValue& states) {
  OptimizerMembers found;
  for (const auto& [name, value] : states.members()) {
    const bool is_tensor = value.is(Pickle::Kind::kTensor);
    const bool is_number = value.is(Pickle::Kind::kInteger) || value.is(Pickle::Kind::kReal);
    if (name == "worker_error" || name == "server_error") continue;
    if (name == "step") {
      found.step = value;
    } else if (is_tensor && value.tensor().dim() > 0) {
      found.tensors.emplace_back(name, value);
    } else if (is_tensor || is_number) {
      found.scalars.emplace_back(name, value);
    }
  }
  return found;
}

std::vector<OptimizerMembers> members_of_ranks(const std::vector<std::optional<TorchValue>>& states,
                                               const std::vector<TorchValue>& dicts) {
  std::vector<OptimizerMembers> ranks;
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    ranks.push_back(states[rank] ? members_of(*states[rank]) : OptimizerMembers());
    if (ranks.back().tensors.size() != ranks.front().tensors.size()) {
      (states[rank] ? *states[rank] : dicts[rank]).fail("has other states of the optimizer than rank 0's file.");
    }
  }
  return ranks;
}

std::vector<Flat> tensors_of_ranks(const std::vector<OptimizerMembers>& ranks, std::size_t index) {
  std::vector<Flat> flats;
  for (const OptimizerMembers& members : ranks) {
    const auto& [name, value] = members.tensors[index];
    if (name != ranks.front().tensors[index].first) value.fail("is not among the states of rank 0's file.");
    flats.push_back(flat_of(value));
  }
  return flats;
}

void add_scalars(Reading& reading, const Shape& parameter, const std::vector<OptimizerMembers>& ranks) {
  const OptimizerMembers& first = ranks.front();
  for (const OptimizerMembers& members : ranks) {
    if (members.step.has_value() != first.step.has_value() ||
        (members.step && members.step->number() != first.step->number())) {
      (members.step ? *members.step : *first.step)
          .fail(
              "is not the same in the files of all ranks: they are of "
              "different saves. Load another checkpoint.");
    }
  }
  if (first.step) reading.set_step(parameter.name, *first.step);
  for (const auto& [name, value] : first.scalars) {
    reading.contents.tensors.push_back(
        {parameter.name, state_of(name), {1}, 0, at::full({1}, value.number(), host_options(at::kFloat))});
  }
}

Flat masters_of(const TorchValue& value) {
  Flat masters = flat_of(value);
  if (masters.values.scalar_type() != at::kFloat) {
    value.fail(std::string("holds values of ") + c10::toString(masters.values.scalar_type()) +
               ", and fp32 master weights are expected. Checkpoints with master weights of 16 bits are not read.");
  }
  return masters;
}

std::vector<TorchValue> optimizer_dicts(const Reading& reading) {
  std::vector<TorchValue> dicts;
  for (const auto& file : reading.optimizer) dicts.push_back(TorchValue::root_of(*file).at("optimizer_state_dict"));
  return dicts;
}

}  // namespace capstan::deepspeed

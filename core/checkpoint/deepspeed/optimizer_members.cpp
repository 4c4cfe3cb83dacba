#include "core/checkpoint/deepspeed/optimizer_members.hpp"

#include <ATen/ops/full.h>

#include "core/host_tensor.hpp"

namespace capstan::deepspeed {

namespace {

/// Whether the configuration of the checkpoint keeps masters in that type: "bf16", "fp16".
bool keeps_masters_in(const Reading& reading, const std::string& type) {
  std::optional<TorchValue> value = reading.model_root().find("ds_config");
  for (const std::string& key : {type, type + "_master_weights_and_grads"}) {
    if (!value || !value->is(Pickle::Kind::kDict)) return false;
    value = value->find(key);
  }
  return value && value->is(Pickle::Kind::kBool) && value->boolean();
}

}  // namespace

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

Flat masters_of(const Reading& reading, const TorchValue& value) {
  Flat masters = flat_of(value);
  const at::ScalarType type = masters.values.scalar_type();
  if (type == at::kFloat) return masters;
  const bool brain = type == at::kBFloat16;
  if ((brain || type == at::kHalf) && keeps_masters_in(reading, brain ? "bf16" : "fp16")) return masters;
  value.fail(std::string("holds values of ") + c10::toString(type) +
             ", and fp32 master weights are expected. ds_config of the model's file does not ask for others by "
             "bf16_master_weights_and_grads or fp16_master_weights_and_grads.");
}

std::vector<TorchValue> optimizer_dicts(const Reading& reading) {
  std::vector<TorchValue> dicts;
  for (const auto& file : reading.optimizer) dicts.push_back(TorchValue::root_of(*file).at("optimizer_state_dict"));
  return dicts;
}

}  // namespace capstan::deepspeed

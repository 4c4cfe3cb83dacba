#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/deepspeed/reading.hpp"

namespace capstan::deepspeed {

/// The states that an optimizer keeps of one parameter, or of a group whose parameters lie one after the other.
struct OptimizerMembers {
  std::vector<std::pair<std::string, TorchValue>> tensors;  // one value an element
  std::vector<std::pair<std::string, TorchValue>> scalars;  // but for the step
  std::optional<TorchValue> step;
};

/// Sorts the members of an optimizer's dict. Members that are None, or neither numbers nor tensors, are left out, and
/// so are the errors of compression, which DeepSpeed saves of rank 0 alone.
OptimizerMembers members_of(const TorchValue& states);

/// The members of all ranks, which must have the same states. `states`: nothing before the first update.
std::vector<OptimizerMembers> members_of_ranks(const std::vector<std::optional<TorchValue>>& states,
                                               const std::vector<TorchValue>& dicts);

/// The state of all ranks that is number `index` among rank 0's tensors.
std::vector<Flat> tensors_of_ranks(const std::vector<OptimizerMembers>& ranks, std::size_t index);

/// Adds the scalars of a parameter's states and its step, which must be the same on all ranks.
void add_scalars(Reading& reading, const Shape& parameter, const std::vector<OptimizerMembers>& ranks);

/// A tensor of masters in one dimension. Throws RuntimeFault for values that are not fp32, unless the configuration of
/// the checkpoint keeps masters in 16 bits (bf16_master_weights_and_grads, fp16_master_weights_and_grads).
Flat masters_of(const Reading& reading, const TorchValue& value);

/// "optimizer_state_dict" of each rank's file.
std::vector<TorchValue> optimizer_dicts(const Reading& reading);

}  // namespace capstan::deepspeed

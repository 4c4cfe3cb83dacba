// ZeRO stage 3: each parameter is padded and cut into one partition a rank. A rank has its partitions of a sub-group
// one after the other.

#include <algorithm>

#include "core/checkpoint/deepspeed/optimizer_members.hpp"
#include "core/checkpoint/deepspeed/reading.hpp"

namespace capstan::deepspeed {
namespace {

/// Adds the partitions of every parameter of a sub-group.
void add_partitions(Reading& reading, const std::vector<Shape>& parameters, const std::string& state,
                    const std::vector<Flat>& ranks) {
  const auto world = static_cast<std::int64_t>(ranks.size());
  std::int64_t needed = 0;
  for (const Shape& parameter : parameters) {
    needed = std::min(needed + (parameter.elements + world - 1) / world, INT64_MAX / 4);  // no file has as many
  }
  for (const Flat& flat : ranks) {
    if (flat.values.numel() == needed) continue;
    flat.source.fail("has " + std::to_string(flat.values.numel()) +
                     " elements, and the parameters of param_shapes of "
                     "the model's file take " +
                     std::to_string(needed) +
                     " of a rank. The files are of different runs, "
                     "or damaged.");
  }
  std::int64_t begin = 0;
  for (const Shape& parameter : parameters) {
    const std::int64_t partition = (parameter.elements + world - 1) / world;
    if (parameter.elements == 0) reading.add(parameter, state, ranks.front(), 0, 0, 0);
    for (std::int64_t rank = 0; rank < world; ++rank) {
      const std::int64_t from = rank * partition, until = std::min(parameter.elements, from + partition);
      if (from >= until) continue;
      reading.add(parameter, state, ranks[static_cast<std::size_t>(rank)], begin, until - from, from);
    }
    begin += partition;
  }
}

TorchValue sub_group_of(const TorchValue& dict, std::size_t index, std::size_t expected) {
  const TorchValue list = dict.at("fp32_flat_groups");
  const std::vector<TorchValue> items = list.items();
  if (items.size() != expected) {
    list.fail("has " + std::to_string(items.size()) + " sub-groups, and param_shapes of the model's file has " +
              std::to_string(expected) + ".");
  }
  return items[index];
}

}  // namespace

void read_parameter_partitions(Reading& reading) {
  const std::vector<TorchValue> dicts = optimizer_dicts(reading);
  reading.loss_scaler = dicts.front().find("loss_scaler");
  reading.parameter_groups = dicts.front().at("optimizer_state_dict").find("param_groups");
  const std::vector<TorchValue> sub_groups = reading.model_root().at("param_shapes").items();
  for (std::size_t index = 0; index < sub_groups.size(); ++index) {
    const std::vector<Shape> parameters = shapes_of(sub_groups[index]);
    std::vector<Flat> masters;
    std::vector<std::optional<TorchValue>> states;
    for (const TorchValue& dict : dicts) {
      masters.push_back(masters_of(reading, sub_group_of(dict, index, sub_groups.size())));
      states.push_back(dict.at("optimizer_state_dict").at("state").find(static_cast<std::int64_t>(index)));
    }
    const std::vector<OptimizerMembers> ranks = members_of_ranks(states, dicts);
    add_partitions(reading, parameters, kParamState, masters);
    for (std::size_t k = 0; k < ranks.front().tensors.size(); ++k) {
      add_partitions(reading, parameters, state_of(ranks.front().tensors[k].first), tensors_of_ranks(ranks, k));
    }
    for (const Shape& parameter : parameters) {
      reading.optimized.push_back(parameter.name);
      add_scalars(reading, parameter, ranks);
    }
  }
}

}  // namespace capstan::deepspeed

// ZeRO stages 1 and 2, and BF16_Optimizer: the parameters of a group lie one after the other in one vector, which is
// padded and cut into one partition a rank. A parameter may lie in the partitions of several ranks.

#include <algorithm>

#include "core/checkpoint/deepspeed/optimizer_members.hpp"
#include "core/checkpoint/deepspeed/reading.hpp"

namespace capstan::deepspeed {
namespace {

constexpr const char* kPartitions = "single_partition_of_fp32_groups";

/// Where the parameters of a group stand in its vector.
struct GroupLayout {
  std::vector<Shape> parameters;
  std::vector<std::int64_t> begins;  // one a parameter
  std::int64_t elements = 0;         // of the vector, without the padding at its end
  std::int64_t partition = 0;        // elements of a rank's partition
};

TorchValue item_of(const TorchValue& list, std::size_t index, std::size_t expected) {
  const std::vector<TorchValue> items = list.items();
  if (items.size() != expected) {
    list.fail("has " + std::to_string(items.size()) + " items, and param_shapes of the model's file has " +
              std::to_string(expected) + " groups.");
  }
  return items[index];
}

/// Elements of zeros behind each parameter: zero_optimization.parameter_alignment.
std::vector<std::int64_t> alignment_of(const TorchValue& dict, std::size_t group, std::size_t groups,
                                       std::size_t parameters) {
  std::vector<std::int64_t> paddings(parameters, 0);
  const auto all = dict.find("param_alignment_paddings");
  if (!all) return paddings;
  const TorchValue list = item_of(*all, group, groups);
  const std::vector<TorchValue> items = list.items();
  if (items.size() != parameters) list.refuse("a list of " + std::to_string(parameters) + " paddings");
  constexpr std::int64_t kMost = 1 << 20;
  for (std::size_t i = 0; i < parameters; ++i) paddings[i] = items[i].integer(0, kMost);
  return paddings;
}

GroupLayout layout_of(const TorchValue& dict, const TorchValue& shapes, std::size_t group, std::size_t groups) {
  GroupLayout layout;
  layout.parameters = shapes_of(shapes);
  const auto paddings = alignment_of(dict, group, groups, layout.parameters.size());
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    layout.begins.push_back(layout.elements);
    const std::int64_t taken = layout.parameters[i].elements + paddings[i];
    if (__builtin_add_overflow(layout.elements, taken, &layout.elements)) shapes.fail("has too many elements.");
  }
  return layout;
}

/// The masters of all ranks, which tell how long a partition is: only the last one may lack its padding.
std::vector<Flat> partitions_of(const Reading& reading, const std::vector<TorchValue>& dicts, GroupLayout& layout,
                                std::size_t group, std::size_t groups) {
  std::vector<Flat> partitions;
  for (const TorchValue& dict : dicts)
    partitions.push_back(masters_of(reading, item_of(dict.at(kPartitions), group, groups)));
  layout.partition = partitions.front().values.numel();
  if (dicts.size() == 1) {
    // The states of the only rank have the padding that its masters lack, but for BF16_Optimizer's.
    constexpr std::int64_t kMost = 1 << 20;
    layout.partition += item_of(dicts.front().at("group_paddings"), group, groups).integer(0, kMost);
  }
  std::int64_t available = 0;
  for (std::size_t rank = 0; rank < partitions.size(); ++rank) {
    const std::int64_t elements = partitions[rank].values.numel();
    const bool last = rank + 1 == partitions.size();
    if (last ? elements > layout.partition : elements != layout.partition) {
      partitions[rank].source.fail("has " + std::to_string(elements) + " elements, and rank 0's partition has " +
                                   std::to_string(layout.partition) + ". The files are of different runs, or damaged.");
    }
    available += elements;
  }
  if (available < layout.elements ||
      (dicts.size() == 1 && available - layout.elements > layout.partition - available)) {
    partitions.back().source.fail("with it the ranks have " + std::to_string(available) +
                                  " elements, and the parameters of param_shapes of the model's file have " +
                                  std::to_string(layout.elements) + ". The files are of different runs, or damaged.");
  }
  return partitions;
}

/// The padding at the end of the vector is the last rank's.
void check_padding(const std::vector<TorchValue>& dicts, const GroupLayout& layout, std::size_t group,
                   std::size_t groups) {
  const auto ranks = static_cast<std::int64_t>(dicts.size());
  for (std::int64_t rank = 0; rank < ranks && ranks > 1; ++rank) {
    const TorchValue padding = item_of(dicts[static_cast<std::size_t>(rank)].at("group_paddings"), group, groups);
    const std::int64_t expected = rank + 1 < ranks ? 0 : ranks * layout.partition - layout.elements;
    if (!padding.is(Pickle::Kind::kInteger) || padding.integer(INT64_MIN, INT64_MAX) != expected) {
      padding.refuse(std::to_string(expected));
    }
  }
}

/// Adds the parts of every parameter that lie in the ranks' partitions.
void add_parts(Reading& reading, const GroupLayout& layout, const std::string& state, const std::vector<Flat>& ranks) {
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const Shape& parameter = layout.parameters[i];
    const std::int64_t begin = layout.begins[i], end = begin + parameter.elements;
    if (parameter.elements == 0) reading.add(parameter, state, ranks.front(), 0, 0, 0);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::int64_t first = static_cast<std::int64_t>(rank) * layout.partition;
      const std::int64_t from = std::max(begin, first), until = std::min(end, first + layout.partition);
      if (from >= until) continue;
      const std::int64_t have = ranks[rank].values.numel();
      if (until - first > have || have > layout.partition) {
        ranks[rank].source.fail("has " + std::to_string(have) + " elements, and '" + parameter.name + "' lies at " +
                                std::to_string(from - first) + " to " + std::to_string(until - first) + " of " +
                                std::to_string(layout.partition) + ". The file is damaged.");
      }
      reading.add(parameter, state, ranks[rank], from - first, until - from, from - begin);
    }
  }
}

/// The states of a group in one rank's file; nothing before the first update.
std::optional<TorchValue> states_of(const TorchValue& dict, std::size_t group, std::size_t groups) {
  const TorchValue base = dict.at("base_optimizer_state");
  if (base.is_list()) return item_of(base, group, groups);  // zero_optimization.elastic_checkpoint
  return base.at("state").find(static_cast<std::int64_t>(group));
}

void add_states(Reading& reading, const std::vector<TorchValue>& dicts, const GroupLayout& layout, std::size_t group,
                std::size_t groups) {
  std::vector<std::optional<TorchValue>> states;
  for (const TorchValue& dict : dicts) states.push_back(states_of(dict, group, groups));
  const std::vector<OptimizerMembers> ranks = members_of_ranks(states, dicts);
  for (std::size_t k = 0; k < ranks.front().tensors.size(); ++k) {
    add_parts(reading, layout, state_of(ranks.front().tensors[k].first), tensors_of_ranks(ranks, k));
  }
  for (const Shape& parameter : layout.parameters) add_scalars(reading, parameter, ranks);
}

/// Fused Adam of older versions has its step in the group.
void add_step_of_group(Reading& reading, const GroupLayout& layout, std::size_t group) {
  if (!reading.parameter_groups) return;
  const std::vector<TorchValue> groups = reading.parameter_groups->items();
  if (group >= groups.size()) return;
  const auto step = groups[group].find("step");
  for (const Shape& parameter : layout.parameters) {
    if (step && !reading.steps.contains(parameter.name)) reading.set_step(parameter.name, *step);
  }
}

/// The parts of parameters that a rank says it has are those of its place: a file may be a copy of another rank's.
void check_place(const TorchValue& dict, const GroupLayout& layout, std::size_t group, std::size_t groups,
                 std::int64_t rank) {
  const auto all = dict.find("param_slice_mappings");
  if (!all) return;  // versions that have none
  std::map<std::string, std::int64_t> expected;
  const std::int64_t first = rank * layout.partition, end = first + layout.partition;
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const std::int64_t begin = layout.begins[i], until = begin + layout.parameters[i].elements;
    expected[layout.parameters[i].name] = std::max<std::int64_t>(0, std::min(until, end) - std::max(begin, first));
  }
  for (const auto& [name, address] : item_of(*all, group, groups).members()) {
    const TorchValue elements = address.at("numel");
    if (elements.integer(0, INT64_MAX) == expected[name]) continue;
    elements.fail("is " + elements.described() + ", and rank " + std::to_string(rank) + " has " +
                  std::to_string(expected[name]) + " elements of '" + name +
                  "'. The file is a copy of another rank's, or damaged.");
  }
}

}  // namespace

void read_flat_partitions(Reading& reading) {
  const std::vector<TorchValue> dicts = optimizer_dicts(reading);
  reading.loss_scaler = dicts.front().find("loss_scaler");
  const TorchValue base = dicts.front().at("base_optimizer_state");
  if (!base.is_list()) reading.parameter_groups = base.find("param_groups");
  const std::vector<TorchValue> shapes = reading.model_root().at("param_shapes").items();
  for (std::size_t group = 0; group < shapes.size(); ++group) {
    GroupLayout layout = layout_of(dicts.front(), shapes[group], group, shapes.size());
    const std::vector<Flat> masters = partitions_of(reading, dicts, layout, group, shapes.size());
    for (std::size_t rank = 0; rank < dicts.size(); ++rank) {
      check_place(dicts[rank], layout, group, shapes.size(), static_cast<std::int64_t>(rank));
    }
    check_padding(dicts, layout, group, shapes.size());
    for (const Shape& parameter : layout.parameters) reading.optimized.push_back(parameter.name);
    add_parts(reading, layout, kParamState, masters);
    add_states(reading, dicts, layout, group, shapes.size());
    add_step_of_group(reading, layout, group);
  }
}

}  // namespace capstan::deepspeed

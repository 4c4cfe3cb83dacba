// Frozen parameters, buffers and further names of parameters, which the optimizer's files lack.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/checkpoint/deepspeed/reading.hpp"

namespace capstan::deepspeed {
namespace {

/// Further names of parameters, and the first name of each.
using Aliases = std::map<std::string, std::string>;

std::set<std::string> given_parameters(const Reading& reading) {
  std::set<std::string> names;
  for (const CheckpointTensor& tensor : reading.contents.tensors) {
    if (tensor.state == kParamState) names.insert(tensor.parameter);
  }
  return names;
}

/// As DeepSpeed lists them; `given`: the parameters that there are.
Aliases listed_aliases(const TorchValue& shared, const std::set<std::string>& given) {
  Aliases aliases;
  for (const auto& [alias, first] : shared.members()) {
    const std::string name = first.text();
    if (given.contains(alias)) first.fail("it is a parameter of its own among param_shapes. The file is damaged.");
    if (!given.contains(name)) first.fail("'" + name + "' is not a parameter of the checkpoint. The file is damaged.");
    aliases[alias] = name;
  }
  return aliases;
}

/// Stage 0 lists none: names of one parameter have the same elements of the same storage.
Aliases aliases_by_storage(const TorchValue& module) {
  Aliases aliases;
  std::map<std::tuple<std::string, std::int64_t, std::vector<std::int64_t>>, std::string> seen;
  for (const auto& [name, value] : module.members()) {
    if (!value.is(Pickle::Kind::kTensor) || value.tensor().numel() == 0) continue;
    const Pickle& pickle = value.file().pickle();
    const std::vector<Pickle::Id>& parts = pickle.items(value.id());
    const std::string key(pickle.text(pickle.items(parts[0])[0]));
    const auto [first, added] =
        seen.emplace(std::tuple(key, pickle.integer(parts[1]), value.tensor().sizes().vec()), name);
    if (!added) aliases[name] = first->second;
  }
  return aliases;
}

std::set<std::string> add_buffers(Reading& reading, const TorchValue& module) {
  std::set<std::string> names;
  for (const TorchValue& item : reading.model_root().at("buffer_names").items()) {
    const std::string name = item.text();
    const TorchValue buffer = module.at(name);
    const at::Tensor values = buffer.tensor();
    reading.add_whole({name, values.sizes().vec(), values.numel()}, kBufferState, buffer);
    names.insert(name);
  }
  return names;
}

/// Stage 2 has frozen parameters whole, stage 3 a part of each in the file of every rank.
void add_frozen_parameters(Reading& reading) {
  const auto shapes = reading.model_root().find("frozen_param_shapes");
  if (!shapes) return;
  for (const Shape& parameter : shapes_of(*shapes)) {
    if (!reading.partitions_model) {
      reading.add_whole(parameter, kParamState, reading.model_root().at("frozen_param_fragments").at(parameter.name));
      continue;
    }
    const auto world = static_cast<std::int64_t>(reading.model.size());
    const std::int64_t partition = (parameter.elements + world - 1) / world;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      const TorchValue root = TorchValue::root_of(*reading.model[static_cast<std::size_t>(rank)]);
      const Flat flat = flat_of(root.at("frozen_param_fragments").at(parameter.name));
      const std::int64_t from = std::min(rank * partition, parameter.elements);
      const std::int64_t until = std::min(from + partition, parameter.elements);
      if (flat.values.numel() < until - from) {
        flat.source.fail("has " + std::to_string(flat.values.numel()) + " elements, and a rank has " +
                         std::to_string(until - from) + " of it.");
      }
      if (until > from || rank == 0) reading.add(parameter, kParamState, flat, 0, until - from, from);
    }
  }
}

}  // namespace

void read_rest_of_model(Reading& reading) {
  const TorchValue module = reading.model_root().at("module");
  const std::set<std::string> buffers = add_buffers(reading, module);
  add_frozen_parameters(reading);
  const std::set<std::string> given = given_parameters(reading);
  const auto shared = reading.model_root().find("shared_params");
  Aliases aliases = shared ? listed_aliases(*shared, given) : Aliases();
  if (reading.optimizer.empty()) aliases = aliases_by_storage(module);
  for (const auto& [name, value] : module.members()) {
    if (reading.partitions_model || buffers.contains(name) || given.contains(name) || aliases.contains(name)) continue;
    if (!value.is(Pickle::Kind::kTensor)) continue;  // what a module's get_extra_state() gave
    const at::Tensor values = value.tensor();
    reading.add_whole({name, values.sizes().vec(), values.numel()}, kParamState, value);
  }
  if (aliases.empty()) return;
  reading.contents.state["tied"] = Json::object();
  for (const auto& [alias, first] : aliases) reading.contents.state["tied"][alias] = first;
}

}  // namespace capstan::deepspeed

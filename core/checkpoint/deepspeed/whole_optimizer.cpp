// ZeRO stage 0: the model's file has the whole optimizer. Its states have numbers in place of names, which go through
// the parameter groups in the program's order.

#include <ATen/ops/equal.h>

#include <algorithm>
#include <set>

#include "core/checkpoint/deepspeed/optimizer_members.hpp"
#include "core/checkpoint/deepspeed/reading.hpp"
#include "core/errors.hpp"

namespace capstan::deepspeed {
namespace {

/// A parameter of the model's file.
struct ModuleTensor {
  Shape shape;
  TorchValue value;
};

std::vector<ModuleTensor> module_tensors(const Reading& reading) {
  std::vector<ModuleTensor> all;
  for (const auto& [name, value] : reading.model_root().at("module").members()) {
    if (!value.is(Pickle::Kind::kTensor)) continue;
    const at::Tensor tensor = value.tensor();
    all.push_back({{name, tensor.sizes().vec(), tensor.numel()}, value});
  }
  return all;
}

const ModuleTensor* find_tensor(const std::vector<ModuleTensor>& module, const std::string& name) {
  const auto found =
      std::find_if(module.begin(), module.end(), [&](const ModuleTensor& one) { return one.shape.name == name; });
  return found == module.end() ? nullptr : &*found;
}

/// Whether a 16-bit weight is the rounding of these masters.
bool is_rounded(const ModuleTensor& weight, const at::Tensor& masters) {
  const at::Tensor values = weight.value.tensor().reshape({-1});
  return masters.numel() == values.numel() && at::equal(masters.to(values.scalar_type()), values);
}

/// The masters of one parameter group: a tensor a parameter, or one of all of them.
struct GroupMasters {
  std::vector<Flat> tensors;
  bool is_flat = false;
};

std::vector<GroupMasters> masters_by_group(const Reading& reading, const TorchValue& optimizer) {
  std::vector<GroupMasters> groups;
  if (const auto flat = optimizer.find("fp32_groups_flat")) {
    for (const TorchValue& group : flat->items()) groups.push_back({{masters_of(reading, group)}, true});
  } else if (const auto lists = optimizer.find("fp32_groups")) {
    for (const TorchValue& group : lists->items()) {
      groups.emplace_back();
      for (const TorchValue& one : group.items()) groups.back().tensors.push_back(masters_of(reading, one));
    }
  }
  return groups;
}

/// Finds the parameters that masters belong to by their values: the weights are the masters, rounded. Nothing where
/// some masters are nobody's.
TrainedNames names_by_values(const std::vector<GroupMasters>& groups, const std::vector<ModuleTensor>& module) {
  TrainedNames names;
  std::set<std::string> taken;
  const auto find = [&](const std::function<bool(const ModuleTensor&)>& fits) -> const ModuleTensor* {
    const auto found = std::find_if(module.begin(), module.end(), [&](const ModuleTensor& one) {
      return one.shape.elements > 0 && !taken.contains(one.shape.name) && fits(one);
    });
    if (found == module.end()) return nullptr;
    taken.insert(found->shape.name);
    names.back().push_back(found->shape.name);
    return &*found;
  };
  for (const GroupMasters& group : groups) {
    names.emplace_back();
    for (const Flat& flat : group.tensors) {
      std::int64_t at = 0;
      while (at < flat.values.numel()) {
        const std::int64_t left = flat.values.numel() - at;
        const ModuleTensor* found = find([&](const ModuleTensor& one) {
          return (group.is_flat ? one.shape.elements <= left : one.shape.elements == left) &&
                 is_rounded(one, flat.values.narrow(0, at, one.shape.elements));
        });
        if (found == nullptr) return {};
        at += found->shape.elements;
      }
    }
  }
  return names;
}

/// Refuses a run whose groups are others than those of the file.
void check_group_sizes(const TrainedNames& names, const TorchValue& groups, bool is_flat) {
  const std::vector<TorchValue> saved = groups.items();
  const char* why =
      " At ZeRO stage 0 DeepSpeed's files have no names for states: resume with the same parameter groups, or start "
      "from the weights alone: capstan export --to safetensors, then --init-from.";
  if (saved.size() != names.size()) {
    groups.fail("has " + std::to_string(saved.size()) + " parameter groups, and this run has " +
                std::to_string(names.size()) + "." + why);
  }
  for (std::size_t i = 0; i < saved.size() && !is_flat; ++i) {
    const std::size_t parameters = saved[i].at("params").items().size();
    if (parameters == names[i].size()) continue;
    saved[i].fail("has " + std::to_string(parameters) + " parameters, and that group of this run has " +
                  std::to_string(names[i].size()) + "." + why);
  }
}

void add_member_tensors(Reading& reading, const Shape& parameter, const OptimizerMembers& members) {
  for (const auto& [name, value] : members.tensors) reading.add_whole(parameter, state_of(name), value);
  add_scalars(reading, parameter, {members});
}

/// Adds masters and states of the groups to the parameters of these names.
class NamedStates {
 public:
  NamedStates(Reading& reading, const TorchValue& states, const std::vector<ModuleTensor>& module)
      : reading_(reading), states_(states), module_(module) {}

  /// One tensor a parameter; `masters` may be empty: the parameters are in fp32 themselves.
  void add_separate(const std::vector<std::string>& names, const GroupMasters& masters) {
    for (std::size_t i = 0; i < names.size(); ++i, ++number_) {
      const Shape& parameter = shape_of(names[i]);
      if (!masters.tensors.empty()) reading_.add_whole(parameter, kParamState, masters.tensors.at(i).source);
      if (const auto states = states_.find(number_)) add_member_tensors(reading_, parameter, members_of(*states));
    }
  }

  /// One tensor of all parameters, which lie in it one after the other.
  void add_flat(const std::vector<std::string>& names, const GroupMasters& masters, std::int64_t group) {
    const auto states = states_.find(group);
    const OptimizerMembers members = states ? members_of(*states) : OptimizerMembers();
    // Once a group: a tensor of a stream is a copy.
    std::vector<std::pair<std::string, Flat>> flats = {{kParamState, masters.tensors.front()}};
    for (const auto& [state, value] : members.tensors) flats.emplace_back(state_of(state), flat_of(value));
    std::int64_t at = 0;
    for (const std::string& name : names) {
      const Shape& parameter = shape_of(name);
      for (const auto& [state, flat] : flats) add_range(parameter, state, flat, at);
      add_scalars(reading_, parameter, {members});
      at += parameter.elements;
    }
  }

 private:
  const Shape& shape_of(const std::string& name) const {
    if (const ModuleTensor* found = find_tensor(module_, name)) return found->shape;
    throw RuntimeFault(reading_.where() + ": holds nothing for '" + name + "'. It was saved from another model.");
  }

  void add_range(const Shape& parameter, const std::string& state, const Flat& flat, std::int64_t at) {
    if (at > flat.values.numel() || parameter.elements > flat.values.numel() - at) {
      flat.source.fail("has " + std::to_string(flat.values.numel()) +
                       " elements, and the parameters of the group have more. It was saved from another model.");
    }
    reading_.add(parameter, state, flat, at, parameter.elements, 0);
  }

  Reading& reading_;
  const TorchValue& states_;
  const std::vector<ModuleTensor>& module_;
  std::int64_t number_ = 0;  // of the next parameter
};

}  // namespace

void read_whole_optimizer(Reading& reading) {
  const auto optimizer = reading.model_root().find("optimizer");
  if (!optimizer) return;
  const TorchValue base = optimizer->find("optimizer_state_dict").value_or(*optimizer);
  const TorchValue groups = base.at("param_groups");
  const std::vector<ModuleTensor> module = module_tensors(reading);
  const std::vector<GroupMasters> masters = masters_by_group(reading, *optimizer);
  const bool is_flat = !masters.empty() && masters.front().is_flat;
  reading.parameter_groups = groups;
  if (!reading.with_tensors) return;
  const TrainedNames names = reading.trained.empty() ? names_by_values(masters, module) : reading.trained;
  if (names.empty()) {
    if (!masters.empty()) {
      reading.weight_notes.emplace_back("its fp32 master weights fit no 16-bit weights, which are used instead.");
    }
    return reading.note("its optimizer's states have no names, and are left out.");
  }
  check_group_sizes(names, groups, is_flat);
  const TorchValue all_states = base.at("state");
  NamedStates states(reading, all_states, module);
  for (std::size_t group = 0; group < names.size(); ++group) {
    if (!masters.empty() &&
        (masters.size() != names.size() || (!is_flat && masters[group].tensors.size() != names[group].size()))) {
      optimizer->fail("its fp32 master weights are not those of its parameter groups. The file is damaged.");
    }
    if (is_flat) {
      states.add_flat(names[group], masters[group], static_cast<std::int64_t>(group));
    } else {
      states.add_separate(names[group], masters.empty() ? GroupMasters() : masters[group]);
    }
    reading.optimized.insert(reading.optimized.end(), names[group].begin(), names[group].end());
  }
}

}  // namespace capstan::deepspeed

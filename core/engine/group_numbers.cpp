// The numbers of parameter groups, as a program reads and writes them.

#include <algorithm>
#include <cmath>

#include "core/engine/keep.hpp"
#include "core/engine/state.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/schema/value.hpp"

namespace capstan {
namespace {

const KeySpec* spec_of(const ComponentManifest& optimizer, const std::string& name) {
  const auto found = std::find_if(optimizer.params.begin(), optimizer.params.end(),
                                  [&](const KeySpec& spec) { return spec.name == name; });
  return found == optimizer.params.end() ? nullptr : &*found;
}

/// Plugins read these in every update; other parameters of an optimizer count when the engine is made.
bool may_change(const KeySpec& spec) {
  return spec.type == KeySpec::Type::kNumber ||
         (spec.type == KeySpec::Type::kArray && spec.element == KeySpec::Type::kNumber);
}

Json value_of(const KeySpec& spec, const std::vector<double>& values) {
  if (spec.type != KeySpec::Type::kArray) return values.front();
  Json list = Json::array();
  for (const double value : values) list.push_back(value);
  return list;
}

/// Throws RuntimeFault for a number that the optimizer's manifest does not allow. A rate may be 0, whatever it says.
void check_number(const std::string& group, const ComponentManifest& optimizer, const std::string& name,
                  const std::vector<double>& values) {
  const std::string which = group + ": '" + name + "' of optimizer '" + optimizer.type + "' ";
  const KeySpec* spec = spec_of(optimizer, name);
  if (spec != nullptr && !may_change(*spec)) {
    throw RuntimeFault(which + "counts when the engine is made and cannot change afterwards. Make a new engine.");
  }
  if (spec == nullptr && name != "lr") {
    throw RuntimeFault(group + ": optimizer '" + optimizer.type + "' has no number '" + name + "'.");
  }
  const bool list = spec != nullptr && spec->type == KeySpec::Type::kArray;
  if (!list && values.size() != 1) {
    throw RuntimeFault(which + "must be one number, got " + std::to_string(values.size()) + ".");
  }
  for (const double value : values) {
    if (!std::isfinite(value)) throw RuntimeFault(which + "must be finite, got " + std::to_string(value) + ".");
  }
  if (name == "lr") {
    if (values.front() >= 0) return;
    throw RuntimeFault("a learning rate of " + std::to_string(values.front()) + ": it must be finite and not below 0.");
  }
  if (const Converted converted = convert(value_of(*spec, values), *spec); !converted.value) {
    throw RuntimeFault(which + converted.fault);
  }
}

}  // namespace

std::vector<ParameterGroupView> Engine::parameter_groups() const {
  std::vector<ParameterGroupView> views;
  for (std::size_t i = 0; i < state_->groups.size(); ++i) views.push_back({state_->groups[i].numbers, {}});
  for (const ParameterEntry& entry : state_->store.entries()) views[entry.group].parameters.push_back(entry.name);
  return views;
}

std::vector<std::string> Engine::group_numbers() const {
  std::vector<std::string> names;
  if (!state_->optimizer) return names;
  const ComponentManifest& optimizer = state_->optimizer->manifest();
  const auto add = [&](const std::string& name) {
    if (!state_->schedule.sets(name)) names.push_back(name);
  };
  if (spec_of(optimizer, "lr") == nullptr) add("lr");
  for (const KeySpec& spec : optimizer.params) {
    if (may_change(spec)) add(spec.name);
  }
  return names;
}

void EngineParts::check_group_number(std::size_t group, const std::string& name,
                                     const std::vector<double>& values) const {
  const std::string which = "parameter group " + std::to_string(group);
  const ComponentManifest& manifest = optimizer->manifest();
  check_number(which, manifest, name, values);
  for (const StateSpec& spec : store.states()) {
    const std::vector<double>* at_first = groups.configured(group).find(name);
    const bool kept = at_first != nullptr && at_first->front() != 0;
    if (spec.when != name || kept || values.front() == 0) continue;
    throw RuntimeFault(which + ": '" + name + "' of optimizer '" + manifest.type +
                       "' was 0 when the engine was made, so that there is no state '" + spec.name +
                       "', which another value needs. Make the engine with a " + name + " other than 0.");
  }
}

void Keep::check_group_numbers(const SavedRun& saved, const std::string& where) const {
  if (!parts_.optimizer || !saved.group_numbers || saved.group_numbers->size() != parts_.groups.size()) return;
  for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
    for (const auto& [name, values] : (*saved.group_numbers)[i]) {
      try {
        parts_.check_group_number(i, name, values);
      } catch (const RuntimeFault& fault) {
        throw RuntimeFault(where + ", numbers that the program had set: " + fault.what());
      }
    }
  }
}

void Keep::restore_groups(const SavedRun& saved, const std::string& where) {
  if (!parts_.optimizer) return;  // nothing is trained
  if (saved.base_lrs.size() != parts_.groups.size()) {
    if (parts_.communicator->rank() > 0) return;
    log::warning(where + ": was saved with " + std::to_string(saved.base_lrs.size()) +
                 (saved.base_lrs.size() == 1 ? " parameter group" : " parameter groups") + ", and this run has " +
                 std::to_string(parts_.groups.size()) + ", which " + (parts_.groups.size() == 1 ? "starts" : "start") +
                 " from the numbers of the configuration.");
    return;
  }
  for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
    if (saved.group_numbers) {
      ParameterGroups::Written written = (*saved.group_numbers)[i];
      std::erase_if(written, [&](const auto& number) { return parts_.schedule.sets(number.first); });
      parts_.groups.restore(i, written);
    }
    if (parts_.schedule.present()) parts_.groups.set_base_lr(i, saved.base_lrs[i]);
  }
}

void Engine::set_group_number(std::size_t group, const std::string& name, const std::vector<double>& values) {
  State& state = *state_;
  if (!state.optimizer) throw RuntimeFault("set_group_number: the configuration has no optimizer.");
  if (group >= state.groups.size()) {
    throw RuntimeFault("set_group_number: there is no parameter group " + std::to_string(group) + "; groups are 0 to " +
                       std::to_string(state.groups.size() - 1) + ".");
  }
  if (state.schedule.sets(name)) {
    throw ConfigError("scheduler: the configuration names '" + state.config.scheduler->type + "', which sets the " +
                      (name == "lr" ? "learning rate" : name) +
                      " of every update. Leave it out, and the program may set them.");
  }
  state.check_group_number(group, name, values);
  state.groups.write(group, name, values);
}

void Engine::set_learning_rate(std::size_t group, double rate) { set_group_number(group, "lr", {rate}); }

}  // namespace capstan

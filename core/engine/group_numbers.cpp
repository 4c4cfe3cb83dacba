// The numbers of parameter groups, as a program reads and writes them.

#include "core/engine/state.hpp"
#include "core/errors.hpp"

namespace capstan {

std::vector<ParameterGroupView> Engine::parameter_groups() const {
  std::vector<ParameterGroupView> views;
  for (std::size_t i = 0; i < state_->groups.size(); ++i) views.push_back({state_->groups[i].numbers, {}});
  for (const ParameterEntry& entry : state_->store.entries()) views[entry.group].parameters.push_back(entry.name);
  return views;
}

std::vector<std::string> Engine::group_numbers() const { return state_->group_numbers(); }

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

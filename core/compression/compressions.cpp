#include "core/compression/compressions.hpp"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "core/compression/unmatched_groups.hpp"
#include "core/errors.hpp"
#include "core/host_tensor.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/component_states.hpp"
#include "core/registry/config_mistakes.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {

void Compressions::add(Component component) {
  auto made = std::make_unique<Member>(std::move(component));
  const std::string& type = made->component.manifest().type;
  made->where = "compression '" + type + "'";
  const auto same = std::count_if(members_.begin(), members_.end(), [&](const std::unique_ptr<Member>& other) {
    return other->component.manifest().type == type;
  });
  made->key = state_key(type, static_cast<std::size_t>(same));
  const int order = made->component.manifest().order;
  const auto after = std::find_if(members_.begin(), members_.end(), [&](const std::unique_ptr<Member>& other) {
    return other->component.manifest().order > order;
  });
  members_.insert(after, std::move(made));
}

void Compressions::plan(Json modules) {
  modules_ = std::move(modules);
  const std::string text = modules_.dump();
  const auto plan_one = [&](Member& member) {
    const std::string answer =
        plugin_text(member.component.function("plan"), member.where, [&](capstan_sink* sink, capstan_error* error) {
          return member.table()->plan(member.self(), as_str(text), sink, error);
        });
    Json json;
    try {
      json = Json::parse(answer);
    } catch (const std::exception& fault) {
      throw PluginError(member.where + ", plan: answered what is no JSON: " + fault.what());
    }
    member.plan = read_plan(json, modules_, member.where);
    check(member);
    if (!member.plan.parameters.empty() || !member.plan.operands.empty()) return;
    const std::string& section = member.component.manifest().section;
    member.plan.warnings.push_back(acts_on_nothing(section.empty() ? member.where : section));
  };
  ConfigMistakes mistakes;
  for (const auto& member : members_) mistakes.gather([&] { plan_one(*member); });
  mistakes.throw_if_any();
}

/// Throws PluginError for a plan that needs functions which the component lacks.
void Compressions::check(const Member& member) const {
  const capstan_compression* table = member.table();
  const auto require = [&](bool needed, bool there, const char* function) {
    if (needed && !there) {
      throw PluginError(member.where + ", plan: it needs the function '" + function +
                        "', which the component lacks. Ask the plugin's author.");
    }
  };
  require(!member.plan.parameters.empty(), CAPSTAN_HAS(table, transform), "transform");
  require(!member.plan.operands.empty(), CAPSTAN_HAS(table, operand), "operand");
  for (const auto& [name, parameter] : member.plan.parameters) {
    require(!parameter.measures.empty(), CAPSTAN_HAS(table, measure), "measure");
    require(parameter.bits > 0, CAPSTAN_HAS(table, encode), "encode");
    require(!parameter.states.empty(), CAPSTAN_HAS(table, prepare), "prepare");
    require(parameter.gradient, CAPSTAN_HAS(table, gradient), "gradient");
    for (const CompressionPlan::State& state : parameter.states) {
      require(state.trained, CAPSTAN_HAS(table, gradient) && parameter.gradient, "gradient");
    }
  }
}

bool Compressions::Member::active(std::int64_t updates) const {
  if (!CAPSTAN_HAS(table(), active)) return true;
  int yes = 0;
  call_plugin(component.function("active"), where, [&](capstan_error*) {
    yes = table()->active(self(), updates);
    return CAPSTAN_OK;
  });
  return yes != 0;
}

const CompressionPlan::Parameter* Compressions::Member::find(const std::string& parameter) const {
  const auto found = plan.parameters.find(parameter);
  return found == plan.parameters.end() ? nullptr : &found->second;
}

const CompressionPlan::Parameter* Compressions::Member::acting(const std::string& parameter, std::int64_t updates) {
  const auto found = plan.parameters.find(parameter);
  if (found == plan.parameters.end() || !active(updates)) return nullptr;
  if (CAPSTAN_HAS(table(), code_bits)) {
    call_plugin(component.function("code_bits"), where, [&](capstan_error*) {
      found->second.bits = table()->code_bits(self(), as_str(parameter), updates);
      return CAPSTAN_OK;
    });
  }
  return &found->second;
}

const std::string* Compressions::compressor_of(const std::string& parameter) const {
  const auto first = std::find_if(members_.begin(), members_.end(), [&](const std::unique_ptr<Member>& member) {
    return member->find(parameter) != nullptr;
  });
  return first == members_.end() ? nullptr : &(*first)->where;
}

const Compressions::Member* Compressions::last_acting(const std::string& parameter, std::int64_t updates) const {
  const auto last = std::find_if(members_.rbegin(), members_.rend(), [&](const std::unique_ptr<Member>& member) {
    return member->acting(parameter, updates) != nullptr;
  });
  return last == members_.rend() ? nullptr : last->get();
}

const Compressions::Member* Compressions::last_coder(const std::string& parameter, std::int64_t updates) const {
  const auto last = std::find_if(members_.rbegin(), members_.rend(), [&](const std::unique_ptr<Member>& member) {
    const CompressionPlan::Parameter* plan = member->acting(parameter, updates);
    return plan != nullptr && plan->bits > 0;
  });
  return last == members_.rend() ? nullptr : last->get();
}

const CompressionPlan::Parameter* Compressions::coder(const std::string& parameter, std::int64_t updates) const {
  const Member* last = last_coder(parameter, updates);
  return last == nullptr ? nullptr : last->find(parameter);
}

const CompressionPlan::Parameter* Compressions::acting(const std::string& parameter, std::int64_t updates) const {
  const Member* last = last_acting(parameter, updates);
  return last == nullptr ? nullptr : last->find(parameter);
}

std::int64_t Compressions::shared_bytes(const std::string& parameter, const Range& part) const {
  std::int64_t bytes = 0;
  for (const auto& member : members_) {
    const CompressionPlan::Parameter* plan = member->find(parameter);
    if (plan == nullptr) continue;
    for (const std::int64_t group : groups_that_cross(plan->layout, part)) {
      bytes += plan->layout.segments_in(plan->layout.in_group(part, group)) *
               static_cast<std::int64_t>(plan->numbers() * sizeof(double));
    }
  }
  return bytes;
}

std::vector<std::string> Compressions::report() const {
  std::vector<std::string> lines;
  for (const auto& member : members_) {
    lines.insert(lines.end(), member->plan.report.begin(), member->plan.report.end());
  }
  return lines;
}

std::vector<std::string> Compressions::warnings() const {
  std::vector<std::string> lines;
  for (const auto& member : members_) {
    lines.insert(lines.end(), member->plan.warnings.begin(), member->plan.warnings.end());
  }
  return lines;
}

std::vector<std::string> Compressions::operands() const {
  std::vector<std::string> modules;
  for (const auto& member : members_) {
    for (const std::string& module : member->plan.operands) {
      if (std::find(modules.begin(), modules.end(), module) == modules.end()) modules.push_back(module);
    }
  }
  return modules;
}

std::string Compressions::planner_of(const std::string& module) const {
  for (const auto& member : members_) {
    const auto& operands = member->plan.operands;
    if (std::find(operands.begin(), operands.end(), module) == operands.end()) continue;
    const auto found = member->plan.named_by.find(module);
    return found == member->plan.named_by.end() ? member->where : found->second;
  }
  return "";
}

bool Compressions::operand(const std::string& module, const at::Tensor& input, std::int64_t updates, bool training,
                           at::Tensor& out) const {
  bool changed = false;
  for (const auto& member : members_) {
    const auto& operands = member->plan.operands;
    if (std::find(operands.begin(), operands.end(), module) == operands.end() || !member->active(updates)) continue;
    // Compressions compute in host memory.
    const at::Tensor from =
        changed ? out.to(host_options(out.scalar_type()), /*non_blocking=*/false, /*copy=*/true) : input.to(at::kCPU);
    const at::Tensor to = out.is_cpu() ? out : at::empty_like(out, host_options(out.scalar_type()));
    call_plugin(member->component.function("operand"), member->where + ", module '" + module + "'",
                [&](capstan_error* error) {
                  return member->table()->operand(member->self(), as_str(module), handle_of(from), updates,
                                                  training ? 1 : 0, handle_of(to), error);
                });
    if (!out.is_cpu()) out.copy_(to);
    changed = true;
  }
  return changed;
}

bool Compressions::operand_as_then(const std::string& module, const at::Tensor& input, std::int64_t updates,
                                   const Json& then, at::Tensor& out) const {
  const Json now = states();
  if (then == now) return operand(module, input, updates, /*training=*/false, out);
  set_states(then);
  try {
    const bool changed = operand(module, input, updates, /*training=*/false, out);
    set_states(now);
    return changed;
  } catch (...) {
    set_states(now);
    throw;
  }
}

void Compressions::begin_micro_batch() {
  forget_micro_batch();
  if (!settled_) settled_ = kept_ = states();
  trying_ = true;
}

void Compressions::forget_micro_batch() {
  if (std::exchange(trying_, false)) set_states(*kept_);
}

void Compressions::keep_micro_batch() {
  kept_ = states();
  trying_ = false;
}

void Compressions::settle(std::int64_t updates) {
  forget_micro_batch();
  settled_.reset();
  for (const auto& member : members_) {
    if (!CAPSTAN_HAS(member->table(), settle)) continue;
    call_plugin(member->component.function("settle"), member->where,
                [&](capstan_error* error) { return member->table()->settle(member->self(), updates, error); });
  }
}

void Compressions::abandon_step() {
  if (settled_) set_states(*settled_);
  settled_.reset();
  trying_ = false;
}

std::vector<std::string> Compressions::state_keys() const {
  std::vector<std::string> keys;
  for (const auto& member : members_) {
    if (CAPSTAN_HAS(member->table(), save) && CAPSTAN_HAS(member->table(), load)) keys.push_back(member->key);
  }
  return keys;
}

Json Compressions::states() const {
  Json states = Json::object();
  for (const auto& member : members_) {
    if (!CAPSTAN_HAS(member->table(), save)) continue;
    states[member->key] = plugin_text(
        member->component.function("save"), member->where + ", save",
        [&](capstan_sink* sink, capstan_error* error) { return member->table()->save(member->self(), sink, error); });
  }
  return states;
}

void Compressions::load(const Json& states) {
  abandon_step();
  set_states(states);
}

void Compressions::set_states(const Json& states) const {
  for (const auto& member : members_) {
    const Json* state = states.find(member->key);
    if (state == nullptr || !CAPSTAN_HAS(member->table(), load)) continue;
    call_plugin(member->component.function("load"), member->where + ", load", [&](capstan_error* error) {
      return member->table()->load(member->self(), as_str(state->as_string()), error);
    });
  }
}

}  // namespace capstan

// The numbers of parameter groups that a program may set.

#include <algorithm>
#include <cmath>

#include "core/components/engine_parts.hpp"
#include "core/errors.hpp"
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

std::vector<std::string> EngineParts::group_numbers() const {
  std::vector<std::string> names;
  if (!optimizer) return names;
  const ComponentManifest& declared = optimizer->manifest();
  const auto add = [&](const std::string& name) {
    if (!schedule.sets(name)) names.push_back(name);
  };
  if (spec_of(declared, "lr") == nullptr) add("lr");
  for (const KeySpec& spec : declared.params) {
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

}  // namespace capstan

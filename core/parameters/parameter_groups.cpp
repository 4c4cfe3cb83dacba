#include "core/parameters/parameter_groups.hpp"

#include <algorithm>
#include <optional>
#include <regex>
#include <unordered_set>

#include "core/errors.hpp"

std::vector<double>* capstan_group::find(std::string_view name) {
  for (auto& [key, values] : numbers) {
    if (key == name) return &values;
  }
  return nullptr;
}

const std::vector<double>* capstan_group::find(std::string_view name) const {
  return const_cast<capstan_group*>(this)->find(name);
}

namespace capstan {
namespace {

/// The numeric values of an optimizer's parameters; text and nulls have no place in a group.
void add_number(capstan_group& group, const std::string& name, const Json& value) {
  std::vector<double> numbers;
  if (value.is_bool()) {
    numbers = {value.as_bool() ? 1.0 : 0.0};
  } else if (value.is_number()) {
    numbers = {value.as_number()};
  } else if (value.is_array()) {
    for (const Json& item : value.as_array()) {
      if (!item.is_number()) return;
      numbers.push_back(item.as_number());
    }
  } else {
    return;
  }
  if (auto* found = group.find(name)) {
    *found = std::move(numbers);
  } else {
    group.numbers.emplace_back(name, std::move(numbers));
  }
}

/// The one name that a pattern of the form "^name$" matches, with special characters escaped.
std::optional<std::string> only_name(const std::string& pattern) {
  if (pattern.size() < 2 || pattern.front() != '^' || pattern.back() != '$') return std::nullopt;
  constexpr std::string_view kSpecial = ".^$*+?()[]{}|\\";
  std::string name;
  for (std::size_t i = 1; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') {
      if (kSpecial.find(pattern[i]) != std::string_view::npos) return std::nullopt;
      name += pattern[i];
      continue;
    }
    ++i;
    if (i + 1 == pattern.size() || kSpecial.find(pattern[i]) == std::string_view::npos) return std::nullopt;
    name += pattern[i];
  }
  return name;
}

/// A rule whose patterns are compiled once: a program's groups have a pattern for every parameter.
class Selection {
 public:
  explicit Selection(const ParameterGroupRule& rule) : dims_below_(rule.dims_below) {
    for (const std::string& pattern : rule.name_patterns) {
      if (auto name = only_name(pattern)) {
        names_.insert(std::move(*name));
      } else {
        patterns_.emplace_back(pattern);
      }
    }
  }

  bool has(const NamedTensor& parameter) const {
    if (dims_below_ && parameter.tensor.dim() < *dims_below_) return true;
    if (names_.contains(parameter.name)) return true;
    return std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const std::regex& pattern) { return std::regex_search(parameter.name, pattern); });
  }

 private:
  std::optional<std::int64_t> dims_below_;
  std::unordered_set<std::string> names_;
  std::vector<std::regex> patterns_;
};

}  // namespace

ParameterGroups::ParameterGroups(const std::vector<NamedTensor>& parameters, const ComponentChoice& optimizer,
                                 const std::vector<ParameterGroupRule>& rules,
                                 const std::function<std::string(const std::string& parameter)>& goes_with) {
  std::vector<std::size_t> rule_of(parameters.size());
  const auto leader = [&](const NamedTensor& parameter) -> const NamedTensor& {
    const std::string name = goes_with ? goes_with(parameter.name) : "";
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const NamedTensor& other) { return !name.empty() && other.name == name; });
    return found == parameters.end() ? parameter : *found;
  };
  const std::vector<Selection> selections(rules.begin(), rules.end());
  std::vector<std::size_t> members(rules.size() + 1);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trained()) continue;
    const auto rule = std::find_if(
        selections.begin(), selections.end(),
        [&, &chosen = leader(parameters[i])](const Selection& candidate) { return candidate.has(chosen); });
    rule_of[i] = rule == selections.end() ? 0 : 1 + static_cast<std::size_t>(rule - selections.begin());
    ++members[rule_of[i]];
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (members[i + 1] == 0) {
      throw ConfigError("capstan.parameter_groups[" + std::to_string(i) +
                        "]: selects none of the model's trainable parameters (the first is '" +
                        (parameters.empty() ? std::string("-") : parameters.front().name) +
                        "'), or an earlier rule has them all. Change its patterns or remove it.");
    }
  }

  std::vector<std::uint32_t> index_of(rules.size() + 1);
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == 0 && !(i == 0 && rules.empty())) continue;
    index_of[i] = static_cast<std::uint32_t>(groups_.size());
    capstan_group& group = groups_.emplace_back();
    for (const auto& [name, value] : optimizer.params.as_object()) add_number(group, name, value);
    if (i > 0) {
      for (const auto& [name, value] : rules[i - 1].overrides) add_number(group, name, value);
    }
    // Every optimizer has a rate; one whose schema names none is scheduled from 1.
    if (group.find("lr") == nullptr) group.numbers.emplace_back("lr", std::vector<double>{1.0});
    base_lrs_.push_back(group.find("lr")->front());
  }
  configured_ = groups_;
  written_.resize(groups_.size());
  for (const std::size_t rule : rule_of) group_of_.push_back(index_of[rule]);
  for (const auto& group : groups_) pointers_.push_back(&group);
}

void ParameterGroups::write(std::size_t group, const std::string& name, const std::vector<double>& values) {
  if (std::vector<double>* found = groups_[group].find(name)) {
    *found = values;
  } else {
    groups_[group].numbers.emplace_back(name, values);
  }
  if (name == "lr") base_lrs_[group] = values.front();
  written_[group][name] = values;
}

void ParameterGroups::restore(std::size_t group, const Written& written) {
  groups_[group] = configured_[group];
  base_lrs_[group] = configured_[group].find("lr")->front();
  written_[group].clear();
  for (const auto& [name, values] : written) write(group, name, values);
}

}  // namespace capstan

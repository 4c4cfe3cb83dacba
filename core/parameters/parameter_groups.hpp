#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/config.hpp"
#include "core/model/model.hpp"

/// The numbers of one parameter group. The C side knows only the pointer.
struct capstan_group {
  std::vector<std::pair<std::string, std::vector<double>>> numbers;  // "lr" -> {1e-3}, "betas" -> {0.9, 0.999}

  std::vector<double>* find(std::string_view name);
  const std::vector<double>* find(std::string_view name) const;
};

namespace capstan {

/// Parameter groups: which parameters share learning rate, decay and the other numbers of the optimizer.
class ParameterGroups {
 public:
  /// Group 0 holds what no rule selects, then one group a rule in their order; the first rule that selects a parameter
  /// has it. Groups without trainable parameters are dropped. Throws ConfigError when a rule selects nothing.
  /// `goes_with`: the parameter whose group one shares; empty: it has its own, as all have with null.
  ParameterGroups(const std::vector<NamedTensor>& parameters, const ComponentChoice& optimizer,
                  const std::vector<ParameterGroupRule>& rules,
                  const std::function<std::string(const std::string& parameter)>& goes_with = nullptr);

  std::size_t size() const { return groups_.size(); }
  capstan_group& operator[](std::size_t index) { return groups_[index]; }
  const capstan_group& operator[](std::size_t index) const { return groups_[index]; }
  /// The group of parameter `index` of the model's list.
  std::uint32_t group_of(std::size_t index) const { return group_of_[index]; }
  /// The numbers that were configured, before any schedule.
  double base_lr(std::size_t group) const { return base_lrs_[group]; }
  void set_base_lr(std::size_t group, double lr) { base_lrs_[group] = lr; }
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  const std::vector<const capstan_group*>& pointers() const { return pointers_; }

  /// Numbers that the program has written, by name.
  using Written = std::map<std::string, std::vector<double>>;
  /// Sets a number of a group, "lr" as its base rate too.
  void write(std::size_t group, const std::string& name, const std::vector<double>& values);
  const Written& written(std::size_t group) const { return written_[group]; }
  /// The numbers of a group when the engine was made.
  const capstan_group& configured(std::size_t group) const { return configured_[group]; }
  /// Gives a group its configured numbers again, but for those in `written`.
  void restore(std::size_t group, const Written& written);

 private:
  std::vector<capstan_group> groups_, configured_;
  std::vector<Written> written_;  // one a group
  std::vector<const capstan_group*> pointers_;
  std::vector<double> base_lrs_;
  std::vector<std::uint32_t> group_of_;
};

}  // namespace capstan

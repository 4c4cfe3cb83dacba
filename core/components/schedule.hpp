#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/parameters/parameter_groups.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// The learning rates, and betas, of each update: from a scheduler component, or as configured without one. [engine]
class Schedule {
 public:
  /// Throws PluginError with the scheduler's text (a list of another length than the groups, say).
  Schedule(std::optional<Component> scheduler, ParameterGroups& groups);

  /// Writes lr and betas of update `update_index` into every group.
  void apply(std::int64_t update_index);
  /// Throws PluginError when what apply() wrote for update `update_index` cannot be trained with: a rate that is not
  /// finite or below 0, betas outside of [0, 1). Asked of updates that are made, not of the one after the last.
  void check(std::int64_t update_index) const;
  /// The rate that update `update_index` of a group uses.
  double rate(std::int64_t update_index, std::uint32_t group) const;

  /// Makes update `update_index` of the run the schedule's first one; 0 in a new engine. Negative: the schedule is
  /// ahead of the run.
  void begin_at(std::int64_t update_index) { begins_at_ = update_index; }
  std::int64_t begins_at() const { return begins_at_; }

  bool present() const { return scheduler_.has_value(); }
  /// Whether apply() writes this number of every group.
  bool sets(std::string_view number) const;
  /// "" without a scheduler, or when it keeps no state.
  std::string save() const;
  void load(std::string_view state);

 private:
  const capstan_scheduler* vtable() const { return scheduler_->vtable<capstan_scheduler>(); }
  [[noreturn]] void refuse(std::int64_t update_index, std::size_t group, const std::string& what, double value,
                           const char* range) const;

  std::optional<Component> scheduler_;
  std::string where_;
  ParameterGroups& groups_;
  std::int64_t begins_at_ = 0;
  std::vector<std::vector<double>> base_betas_;  // one a group, empty where there are none
};

}  // namespace capstan

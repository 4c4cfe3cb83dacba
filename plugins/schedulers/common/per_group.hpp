#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capstan/sdk/config_mistake.hpp"
#include "capstan/sdk/scheduler.hpp"

namespace capstan::schedulers {

/// A parameter that is one number for all groups, or a list with one number a group.
class PerGroup {
 public:
  PerGroup(const sdk::Params& params, std::string_view key) : key_(key), is_list_(params.is_list(key)) {
    values_ = params.scalar_or_list(key);
  }

  bool is_list() const { return is_list_; }
  double operator[](std::uint32_t group) const { return values_[is_list_ ? group : 0]; }

  /// Call it from start(): throws when there is a list of another length.
  void check_length(const sdk::ScheduleStart& start) const {
    if (!is_list_ || values_.size() == start.group_count()) return;
    const std::string given = std::to_string(values_.size()) + (values_.size() == 1 ? " value" : " values");
    const std::string groups = start.group_count() == 1
                                   ? "there is 1 parameter group"
                                   : "there are " + std::to_string(start.group_count()) + " parameter groups";
    throw sdk::ConfigMistake("scheduler.params." + key_, "the list has " + given + ", " + groups +
                                                             ". Give one number for all, or one value a group.");
  }

 private:
  std::string key_;
  bool is_list_;
  std::vector<double> values_;
};

}  // namespace capstan::schedulers

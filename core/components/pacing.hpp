#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/registry/registry.hpp"

namespace capstan {

/// Where schedules of type "custom" get their difficulty from: functions of the program, and a component of kind
/// "pacing" for all other metrics.
class Pacing {
 public:
  /// The difficulty of a metric in a step, 1 for the first: a pure function.
  using DifficultyFunction = std::function<std::int64_t(std::int64_t step)>;

  void set_component(Component component) { component_.emplace(std::move(component)); }
  /// In place of the one of before.
  void set(const std::string& metric, DifficultyFunction function) { functions_[metric] = std::move(function); }

  /// Throws ConfigError naming both ways where there is neither, PluginError with the component's text.
  std::int64_t at(std::string_view metric, std::int64_t step) const;

 private:
  std::map<std::string, DifficultyFunction, std::less<>> functions_;
  std::optional<Component> component_;
};

}  // namespace capstan

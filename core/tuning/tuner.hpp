#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/registry/registry.hpp"

namespace capstan {

/// What a tuner is told of the points: their names, and for each the same features.
struct TuningFeatures {
  std::vector<std::string> points, features;
  std::vector<double> values;  // [points][features]
};

/// A component of kind "tuner", whose answers are checked.
class Tuner {
 public:
  explicit Tuner(Component component) : component_(std::move(component)) {}

  const std::string& type() const { return component_.manifest().type; }

  /// Once, first. Throws PluginError with its text.
  void start(const TuningFeatures& space, std::size_t budget, std::uint64_t seed);
  /// Points, `most` at most, each of them for the first time; none: it wants no more. Throws PluginError naming the
  /// point that it chose twice, or that there is not.
  std::vector<std::size_t> ask(const std::vector<double>& predictions, std::size_t most);
  /// `cost`: none where the trial failed.
  void tell(std::size_t point, std::optional<double> cost);

  bool saves() const;
  std::string save() const;
  /// What save() gave, of a tuner that has been started on the same space; `asked`: the points that it had chosen.
  void load(const std::string& saved, const std::vector<std::size_t>& asked);

 private:
  std::string where() const { return "tuner '" + type() + "'"; }
  const capstan_tuner* table() const { return component_.vtable<capstan_tuner>(); }

  Component component_;
  std::vector<std::string> names_;
  std::set<std::size_t> asked_;
};

}  // namespace capstan

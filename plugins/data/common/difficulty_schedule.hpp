#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/component.hpp"

namespace capstan::data {

/// How difficult samples may be in a step, as DeepSpeed's curricula count it (Li et al. 2022, arXiv 2108.06084, section
/// 3; the root is that of Platanios et al. 2019, equation 7). Steps count from 1. The difficulty never leaves [minimum,
/// maximum], and stays once it has reached the maximum.
class DifficultySchedule {
 public:
  /// The difficulty of a step where the schedule is "custom".
  using Custom = std::function<std::int64_t(std::int64_t step)>;

  /// `section`: a JSON pointer to min_difficulty, max_difficulty, schedule_type and schedule_config, which the
  /// configuration's rules have checked.
  DifficultySchedule(const sdk::Document& params, const std::string& section, Custom custom)
      : type_(params.text(section + "/schedule_type")),
        minimum_(params.integer(section + "/min_difficulty")),
        maximum_(params.integer(section + "/max_difficulty")),
        custom_(std::move(custom)),
        current_(minimum_) {
    const std::string config = section + "/schedule_config/";
    if (type_ == "fixed_discrete") {
      for (const double value : params.numbers(config + "difficulty"))
        levels_.push_back(static_cast<std::int64_t>(value));
      for (const double value : params.numbers(config + "max_step")) ends_.push_back(static_cast<std::int64_t>(value));
    } else if (type_ != "custom") {
      total_ = params.number(config + "total_curriculum_step");
      step_ = params.integer(config + "difficulty_step");
      degree_ = type_ == "fixed_root" ? params.number(config + "root_degree") : 1;
    }
  }

  std::int64_t minimum() const { return minimum_; }
  std::int64_t maximum() const { return maximum_; }
  std::int64_t current() const { return current_; }
  /// What a checkpoint had as current().
  void restore(std::int64_t current) { current_ = std::clamp(current, std::min(minimum_, maximum_), maximum_); }

  /// The difficulty of a step, from now on current().
  std::int64_t update(std::int64_t step) {
    if (current_ < maximum_) current_ = std::min(std::max(raw(step), minimum_), maximum_);
    return current_;
  }

 private:
  std::int64_t raw(std::int64_t step) const {
    if (type_ == "custom") return custom_(step);
    if (type_ == "fixed_discrete") {
      const auto end = std::lower_bound(ends_.begin(), ends_.end(), step);
      return levels_[static_cast<std::size_t>(end - ends_.begin())];
    }
    const double share = std::pow(static_cast<double>(step) / total_, 1.0 / degree_);
    const auto value = static_cast<std::int64_t>(
        std::floor(share * static_cast<double>(maximum_ - minimum_) + static_cast<double>(minimum_)));
    return value - value % step_;
  }

  std::string type_;
  std::int64_t minimum_, maximum_, step_ = 1;
  double total_ = 1, degree_ = 1;
  std::vector<std::int64_t> levels_, ends_;
  Custom custom_;
  std::int64_t current_;
};

}  // namespace capstan::data

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "capstan/sdk/component.hpp"

namespace capstan::random_ltd {

/// How many tokens a wrapped layer keeps, a function of the steps done: a line from min_value to max_value, down to a
/// multiple of seq_per_step, though never below min_value. Once max_value is reached it stays.
class KeptLength {
 public:
  /// Reads "random_ltd_schedule" at JSON pointer `path`, whose values the schema has checked.
  KeptLength(const sdk::Params& params, const std::string& path)
      : minimum_(params.integer(path + "/min_value")),
        maximum_(params.integer(path + "/max_value")),
        require_steps_(params.integer(path + "/schedule_config/require_steps")),
        multiple_(params.integer(path + "/schedule_config/seq_per_step")),
        current_(minimum_) {}

  /// The length of a step, `done` steps after the first.
  std::int64_t update(std::int64_t done) {
    current_ = current_ < maximum_ ? at(done) : maximum_;
    return current_;
  }

  std::int64_t current() const { return current_; }
  std::int64_t maximum() const { return maximum_; }
  void restore(std::int64_t current) { current_ = current; }

 private:
  std::int64_t at(std::int64_t done) const {
    const double way = static_cast<double>(done) / static_cast<double>(require_steps_);
    const double span = way * static_cast<double>(maximum_ - minimum_);
    const auto length = static_cast<std::int64_t>(std::floor(span + static_cast<double>(minimum_)));
    return std::min(maximum_, std::max(minimum_, length - length % multiple_));
  }

  std::int64_t minimum_, maximum_, require_steps_, multiple_, current_;
};

}  // namespace capstan::random_ltd

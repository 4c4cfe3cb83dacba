#pragma once

#include <cstdint>
#include <deque>

namespace capstan::elements {

/// The numbers of kernels that depend on a parameter's own step counter beside its group. Parameters nearly always
/// stand at the same step, so the costly powers are taken once a group, not once a slot.
template <class Numbers>
class StepNumbers {
 public:
  /// Those of `group` at step `step`, made by make() unless they are the last ones made for it. It stays where it is.
  template <class Make>
  const Numbers& get(std::uint32_t group, std::int64_t step, Make&& make) {
    if (entries_.empty() || entries_.back().group != group || entries_.back().step != step) {
      entries_.push_back({group, step, make()});
    }
    return entries_.back().numbers;
  }

 private:
  struct Entry {
    std::uint32_t group;
    std::int64_t step;
    Numbers numbers;
  };
  std::deque<Entry> entries_;
};

}  // namespace capstan::elements

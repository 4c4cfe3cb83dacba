#pragma once

#include <cstdint>

#include "capstan/sdk/scheduler.hpp"

namespace capstan::schedulers {

/// Turns the index of an update into k, the number that the formulas are written in: -1 at the start, n once update n
/// is done; update n therefore runs at k = n - 1. With `last_batch_iteration` = j >= 0 the schedule goes on behind
/// iteration j: update n runs at k = j + n, and update 0 at whatever the optimizer's section says.
class Updates {
 public:
  explicit Updates(const sdk::Params& params) : start_(params.integer("last_batch_iteration")) {}

  bool untouched(std::int64_t update_index) const { return start_ >= 0 && update_index == 0; }
  std::int64_t k(std::int64_t update_index) const { return start_ + update_index; }

 private:
  std::int64_t start_;
};

}  // namespace capstan::schedulers

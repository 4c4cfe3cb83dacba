#pragma once

#include <cstdint>

namespace capstan {

/// Which parameters never leave memory at stage 3. Trained ones are asked for first, both kinds in the model's order.
class Persistence {
 public:
  /// `each`: elements of a parameter at most (stage3_param_persistence_threshold); `together`: of all that stay
  /// (stage3_model_persistence_threshold).
  Persistence(std::int64_t each, std::int64_t together) : each_(each), left_(together) {}

  bool stays(std::int64_t numel) {
    if (numel > each_ || numel > left_) return false;
    left_ -= numel;
    return true;
  }

 private:
  std::int64_t each_, left_;
};

}  // namespace capstan

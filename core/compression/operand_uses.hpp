#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/compression/compressions.hpp"

namespace capstan {

/// The uses of modules with compressed inputs that backward may run again, each with the states that it left in the
/// compressions: a second use of a module changes the range that the first one had.
class OperandUses {
 public:
  void clear() { uses_.clear(); }
  /// Uses whose states are still those of the compressions get a copy of them.
  void keep_states(const Compressions& compressions);
  /// Called before another use of the module.
  void before(const Compressions& compressions, const std::string& module);
  /// Called after a use, with the input as it was given.
  void add(const std::string& module, const at::Tensor& input);
  /// Fills `out` as the use of this input did; false: nothing changes. Throws RuntimeFault where the input does not
  /// tell which of several uses that differ runs again.
  bool run_again(const Compressions& compressions, const std::string& module, const at::Tensor& input,
                 std::int64_t updates, at::Tensor& out) const;

 private:
  struct Use {
    std::uint64_t digest;                // of the input
    std::shared_ptr<const Json> states;  // null: those that the compressions have
  };
  std::map<std::string, std::vector<Use>> uses_;
};

}  // namespace capstan

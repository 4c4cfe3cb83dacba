#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"

namespace capstan {

/// Which rows, along the first dimension, the sparse gradients of a step have. [engine]
class SparseRows {
 public:
  explicit SparseRows(const std::vector<at::Tensor>& parameters);

  /// Takes down the rows of a gradient of parameter i, which may be one of several in the step; one that is dense makes
  /// the step's gradient of that parameter dense.
  void note(std::size_t i, const at::Tensor& gradient);
  /// All ranks together: each gets what any of them took down. `step` names it, "step 12".
  void agree(Communicator& communicator, const std::string& step);
  /// The rows of parameter i, ascending, until the next call; null where a gradient of it was dense.
  const std::vector<std::int64_t>* rows(std::size_t i) const;
  /// Forgets the step's rows.
  void drop();

 private:
  std::vector<std::int64_t> first_;  // where each parameter's marks begin: one for a dense gradient, then one a row
  std::vector<std::uint8_t> marks_;
  mutable std::vector<std::vector<std::int64_t>> lists_;
};

}  // namespace capstan

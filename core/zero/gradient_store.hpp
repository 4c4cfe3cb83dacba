#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace capstan {

/// Keeps mean gradients of this rank's parts of parameters outside memory. [any thread, one call at a time]
class GradientStore {
 public:
  virtual ~GradientStore() = default;

  /// Takes the mean gradient of this rank's part of trained parameter `parameter`: of the accumulation type, one
  /// dimension, contiguous, of at least one element. `add`: `values` become the sum with what is kept already, in place
  /// and rounded as at::Tensor::add_ rounds it, and that is kept; else what an earlier step has left is forgotten.
  /// Returns when `values` may change. Throws RuntimeFault.
  virtual void keep(std::size_t parameter, at::Tensor values, bool add) = 0;
  /// Fills `to` (as the values of keep()) with what is kept. Throws RuntimeFault.
  virtual void read(std::size_t parameter, at::Tensor to) = 0;
};

}  // namespace capstan

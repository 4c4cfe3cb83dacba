#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace capstan {

/// Values of a tensor that are not in memory, in order: `count` elements from `from` on, contiguous, one dimension, of
/// the tensor's dtype, on the CPU, valid until the next call. The first call has from = 0, each next one goes on where
/// the last one ended. What it throws reaches who writes the tensor. [one call at a time]
using ReadValues = std::function<at::Tensor(std::int64_t from, std::int64_t count)>;

/// A tensor of that shape and dtype without values, on the meta device: what stands beside ReadValues.
at::Tensor values_elsewhere(at::IntArrayRef shape, at::ScalarType type);

/// Room for the values that are being written, one after another: memory that was taken anew for each would leave holes
/// in the heap.
class ValuesRoom {
 public:
  /// So many elements, which overwrite those given before.
  at::Tensor of(std::int64_t count, at::ScalarType type);

 private:
  at::Tensor bytes_;
};

}  // namespace capstan

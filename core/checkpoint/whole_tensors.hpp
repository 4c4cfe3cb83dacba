#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/checkpoint/checkpoint.hpp"

namespace capstan {

/// A tensor of a checkpoint with its parts, in the order of their elements.
struct WholeTensor {
  std::vector<const CheckpointTensor*> parts;

  const CheckpointTensor& first() const { return *parts.front(); }
  /// Elements of all parts.
  std::int64_t elements() const;
};

/// The tensors of a checkpoint, which must outlive them, in its order.
std::vector<WholeTensor> whole_tensors(const CheckpointContents& contents);

/// Reads a tensor from its first element on, however it is cut.
class ElementReader {
 public:
  explicit ElementReader(const WholeTensor& tensor) : tensor_(tensor) {}

  /// The next elements, `count` at most and of one part, in one dimension; undefined at the end.
  at::Tensor next(std::int64_t count);

 private:
  const WholeTensor& tensor_;
  std::size_t part_ = 0;
  std::int64_t at_ = 0;  // in the part
};

}  // namespace capstan

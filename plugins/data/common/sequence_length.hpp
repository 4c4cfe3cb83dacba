#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/repeat_interleave.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/batch.hpp"

namespace capstan::data {

/// Makes the sequences of a batch shorter.
class SequenceLength {
 public:
  explicit SequenceLength(sdk::Batch& batch) : batch_(batch) {
    batch.each_tensor([&](std::string_view name, capstan_tensor tensor) {
      tensors_.emplace_back(std::string(name), sdk::borrow(tensor));
    });
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.dim() > 1 && (tokens_ == 0 || name == "input_ids")) tokens_ = tensor.size(1);
    }
  }

  /// Tensors of as many columns as the tokens have lose what lies behind `length`: labels, masks, positions.
  void cut(std::int64_t length) {
    if (tokens_ <= length) return;
    for (const auto& [name, tensor] : tensors_) {
      if (!has_tokens(tensor)) continue;
      set(name, tensor.narrow(1, 0, length).contiguous());
    }
  }

  /// Tensors of as many columns as the tokens have get rows of `length`: k = tokens / length of them for each, and lose
  /// what remains behind these. Rows of other tensors are repeated; a sample_position p becomes k * p, k * p + 1, ...
  void fold(std::int64_t length) {
    if (tokens_ <= length) return;
    const std::int64_t pieces = tokens_ / length;
    for (const auto& [name, tensor] : tensors_) {
      if (has_tokens(tensor)) {
        std::vector<std::int64_t> shape = tensor.sizes().vec();
        shape[0] *= pieces;
        shape[1] = length;
        set(name, tensor.narrow(1, 0, pieces * length).reshape(shape));
      } else if (name == "sample_position") {
        set(name, tensor.unsqueeze(1).mul(pieces).add(at::arange(pieces, tensor.options())).flatten());
      } else if (tensor.dim() > 0) {
        set(name, at::repeat_interleave(tensor, pieces, 0));
      }
    }
  }

 private:
  bool has_tokens(const at::Tensor& tensor) const { return tensor.dim() > 1 && tensor.size(1) == tokens_; }
  void set(const std::string& name, const at::Tensor& tensor) { batch_.set_tensor(name, sdk::lend(tensor)); }

  sdk::Batch& batch_;
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::int64_t tokens_ = 0;
};

}  // namespace capstan::data

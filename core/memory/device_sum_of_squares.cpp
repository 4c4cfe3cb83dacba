#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "core/memory/sum_of_squares.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kPieceBlocks = 128;  // 32 MiB, where the norm's operator makes a copy in double precision

SumOfSquares square_of(double norm) { return {norm * norm, norm * norm}; }

}  // namespace

std::vector<SumOfSquares> sums_of_squares_on_device(const std::vector<const at::Tensor*>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;   // norms of blocks, several in one tensor
  std::vector<at::Tensor> rests;  // what ends a tensor, less than a block
  std::vector<std::int64_t> blocks;
  for (const at::Tensor* tensor : tensors) {
    const at::Tensor values = tensor->detach().view({-1});
    blocks.push_back(values.numel() / kSquareBlock);
    const std::int64_t whole = blocks.back() * kSquareBlock;
    for (std::int64_t at = 0; at < whole; at += kPieceBlocks * kSquareBlock) {
      const at::Tensor piece = values.narrow(0, at, std::min(kPieceBlocks * kSquareBlock, whole - at));
      rows.push_back(at::linalg_vector_norm(piece.view({-1, kSquareBlock}), 2, at::IntArrayRef{1}, false, at::kDouble));
    }
    if (values.numel() > whole) rests.push_back(values.narrow(0, whole, values.numel() - whole));
  }
  std::vector<SumOfSquares> sums;
  if (rows.empty() && rests.empty()) return sums;
  if (!rests.empty()) rows.push_back(at::stack(at::_foreach_norm(rests, 2, at::kDouble)));
  const at::Tensor norms = at::cat(rows).cpu();  // the one wait for the device
  const double* norm = norms.const_data_ptr<double>();
  const double* rest = norm + norms.numel() - static_cast<std::int64_t>(rests.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::int64_t block = 0; block < blocks[i]; ++block) sums.push_back(square_of(*norm++));
    if (tensors[i]->numel() > blocks[i] * kSquareBlock) sums.push_back(square_of(*rest++));
  }
  return sums;
}

// One launch takes the norms of many tensors and reads each element once. The sums of blocks take a launch a tensor and
// a copy in double precision: on an H200 2.7 ms for 163 million gradients, a tenth of a step.
SumOfSquares sum_of_squares_on_device(const std::vector<const at::Tensor*>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const at::Tensor* tensor : tensors) {
    if (tensor->numel() > 0) values.push_back(tensor->detach());
  }
  SumOfSquares total;
  if (values.empty()) return total;
  const at::Tensor norms = at::stack(at::_foreach_norm(values, 2, at::kDouble)).cpu();  // the one wait for the device
  for (std::int64_t i = 0; i < norms.numel(); ++i) total += square_of(norms.const_data_ptr<double>()[i]);
  return total;
}

}  // namespace capstan

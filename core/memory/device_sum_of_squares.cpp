#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "core/memory/sum_of_squares.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kPieceBlocks = 128;  // 32 MiB in double precision, beside what is there anyway

/// Sums of the squares of rows of `width` elements, in double precision.
at::Tensor row_sums(const at::Tensor& values, std::int64_t width) {
  return values.to(at::kDouble).square_().view({-1, width}).sum(1);
}

}  // namespace

std::vector<SumOfSquares> sums_of_squares_on_device(const std::vector<const at::Tensor*>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const at::Tensor* tensor : tensors) {
    const at::Tensor values = tensor->detach().view({-1});
    const std::int64_t whole = values.numel() / kSquareBlock * kSquareBlock;
    for (std::int64_t at = 0; at < whole; at += kPieceBlocks * kSquareBlock) {
      parts.push_back(row_sums(values.narrow(0, at, std::min(kPieceBlocks * kSquareBlock, whole - at)), kSquareBlock));
    }
    if (const std::int64_t rest = values.numel() - whole; rest > 0) {
      parts.push_back(row_sums(values.narrow(0, whole, rest), rest));
    }
  }
  std::vector<SumOfSquares> sums;
  if (parts.empty()) return sums;
  const at::Tensor all = at::cat(parts).cpu();  // the one wait for the device
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const double exact = all.const_data_ptr<double>()[i];
    sums.push_back({exact, exact});
  }
  return sums;
}

}  // namespace capstan

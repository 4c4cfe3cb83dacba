#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <vector>

namespace capstan::models {

/// What `compute` makes of each row of a step of generation, [rows, ...]. LibTorch's vector kernels compute the last
/// elements of a tensor otherwise than those before them, so that a row's bits would depend on how many rows there are.
template <class Compute>
at::Tensor by_rows(const at::Tensor& x, Compute compute) {
  if (x.size(0) == 1) return compute(x);
  std::vector<at::Tensor> rows;
  for (std::int64_t row = 0; row < x.size(0); ++row) rows.push_back(compute(x.narrow(0, row, 1)));
  return at::cat(rows);
}

}  // namespace capstan::models

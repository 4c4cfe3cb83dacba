#pragma once

#include <ATen/core/Tensor.h>

namespace capstan {

/// `values` as if they were `input` to autograd: the gradient of the one is that of the other, unchanged (Bengio,
/// Leonard and Courville 2013, "straight-through estimator"). `values` must be a tensor of its own, without a graph.
at::Tensor straight_through(const at::Tensor& input, const at::Tensor& values);

}  // namespace capstan

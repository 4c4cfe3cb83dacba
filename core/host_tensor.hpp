#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

/// Tensors in host memory whatever device trains: counts and sums that ranks exchange, messages of a host transport,
/// values that a component of the CPU works on. A tensor beside one of the model's has that one's options, or the
/// accelerator allocates it. cmake/CheckDeviceMemory.cmake refuses at::empty() and the like without options in core.
namespace capstan {

inline at::TensorOptions host_options(at::ScalarType dtype) { return at::TensorOptions(dtype).device(at::kCPU); }

inline at::Tensor host_empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, host_options(dtype));
}
inline at::Tensor host_zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::zeros(sizes, host_options(dtype));
}
inline at::Tensor host_full(at::IntArrayRef sizes, const at::Scalar& value, at::ScalarType dtype) {
  return at::full(sizes, value, host_options(dtype));
}

}  // namespace capstan

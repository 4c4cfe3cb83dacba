#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "capstan/plugin.h"

namespace capstan {

/// LibTorch's stable handle of a tensor is its address: borrowed, no copy.
inline capstan_tensor handle_of(const at::Tensor& tensor) {
  return reinterpret_cast<capstan_tensor>(const_cast<at::Tensor*>(&tensor));
}

inline at::Tensor& tensor_of(capstan_tensor handle) { return *reinterpret_cast<at::Tensor*>(handle); }

/// Takes over a handle that a plugin returned. Undefined where it returned none.
inline at::Tensor take_tensor(capstan_tensor handle) {
  const std::unique_ptr<at::Tensor> owned(reinterpret_cast<at::Tensor*>(handle));
  return owned ? std::move(*owned) : at::Tensor();
}

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "capstan/sdk/component.hpp"

/// The pinned tier: a tensor handle is the address of an at::Tensor.
namespace capstan::sdk {

/// The tensor behind a borrowed handle, for the duration of the call.
inline const at::Tensor& borrow(capstan_tensor handle) { return *reinterpret_cast<const at::Tensor*>(handle); }

/// A handle that the other side may use while `tensor` lives.
inline capstan_tensor lend(const at::Tensor& tensor) {
  return reinterpret_cast<capstan_tensor>(const_cast<at::Tensor*>(&tensor));
}

/// A new handle that the receiver owns.
inline capstan_tensor give(at::Tensor tensor) {
  return reinterpret_cast<capstan_tensor>(new at::Tensor(std::move(tensor)));
}

/// The tensor of a handle that we own; the handle is released. An undefined tensor for a null handle.
inline at::Tensor take(capstan_tensor handle) {
  const std::unique_ptr<at::Tensor> owned(reinterpret_cast<at::Tensor*>(handle));
  return owned ? std::move(*owned) : at::Tensor();
}

}  // namespace capstan::sdk

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "device/order.hpp"

namespace capstan::emulated {

/// Adds the bytes of a tensor of the device, which may be strided, to what an operator accesses.
inline void add_access(std::vector<Access>& accesses, const at::Tensor& tensor, bool write) {
  if (tensor.numel() == 0) return;
  const std::size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  const auto* first = static_cast<const char*>(tensor.storage().data());
  accesses.push_back(
      {first + tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size()), write, bytes});
}

}  // namespace capstan::emulated

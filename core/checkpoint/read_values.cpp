#include "core/checkpoint/read_values.hpp"

#include <ATen/ops/empty.h>

#include "core/host_tensor.hpp"

namespace capstan {

at::Tensor values_elsewhere(at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
}

at::Tensor ValuesRoom::of(std::int64_t count, at::ScalarType type) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(c10::elementSize(type));
  if (!bytes_.defined() || bytes_.numel() < bytes) bytes_ = host_empty({bytes}, at::kByte);
  return bytes_.narrow(0, 0, bytes).view(type);
}

}  // namespace capstan

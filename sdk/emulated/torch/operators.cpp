// Operators that the CPU's kernels cannot compute on the device's behalf: those that make, view or copy tensors, and
// those that only CUDA has.

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/counts.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/order.hpp"
#include "torch/access.hpp"
#include "torch/backend.hpp"
#include "torch/fallback.hpp"
#include "torch/registration.hpp"

namespace capstan::emulated {
namespace {

using OptionalDtype = std::optional<c10::ScalarType>;
using OptionalLayout = std::optional<c10::Layout>;
using OptionalDevice = std::optional<c10::Device>;

int index_of(const OptionalDevice& device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(at::IntArrayRef size, OptionalDtype dtype, OptionalLayout, OptionalDevice device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const int before = exchange_device(index_of(device));
  at::Tensor made = at::detail::empty_generic(size, &device_allocator(), c10::DispatchKeySet(dispatch_key()),
                                              c10::dtype_or_default(dtype), format);
  exchange_device(before);
  return made;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, OptionalDtype dtype, OptionalLayout,
                         OptionalDevice device, std::optional<bool>) {
  return empty_on(size, stride, c10::dtype_or_default(dtype), index_of(device));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<c10::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto elements = static_cast<std::size_t>(self.storage_offset() + impl->numel());
  const std::size_t bytes = elements * self.element_size(), before = self.storage().nbytes();
  if (before >= bytes) return self;
  const at::Tensor larger = empty_on({static_cast<std::int64_t>(bytes)}, {1}, at::kByte, self.device().index());
  if (before > 0) {
    std::memcpy(host_view(larger.storage().mutable_data()), host_view(self.storage().data()), before);
  }
  auto* storage = self.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(larger.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  storage->set_nbytes(bytes);
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, std::int64_t offset, at::IntArrayRef size,
                               at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.size() == size.size()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.element_size());
  return set_storage_offset(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

/// A copy into, out of or on the device. A copy from or to pageable memory waits, as CUDA's do.
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool to = is_ours(self), from = is_ours(source);
  const int device = (to ? self : source).device().index(), stream = current_stream(device);
  std::vector<Access> accesses;
  if (from) add_access(accesses, source, false);
  if (to) add_access(accesses, self, true);
  launch("copy_", device, stream, accesses);
  if (self.numel() == 0) return self;
  const at::Tensor host = to && from ? at::Tensor() : to ? source : self;
  const bool pinned = host.defined() && host.has_storage() && is_pinned(host.storage().data());
  if (pinned) open_pinned(host.storage().data());
  (to ? cpu_view(self) : self).copy_(from ? cpu_view(source) : source);
  if (!host.defined()) return self;
  {
    const std::lock_guard lock(device_mutex());
    (to ? counts().bytes_to_device : counts().bytes_to_host) += host.nbytes();
    if (!non_blocking || !pinned) ++counts().blocking_copies;
  }
  if (non_blocking && pinned) {
    begin_late_copy(device, stream, host.storage().data(), /*host_may_read=*/to);
  } else {
    wait_stream(device, stream, to ? "copy to the device" : "copy to the host");
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  at::Tensor to = destination;
  copy(to, self, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  const int device = self.device().index();
  launch("item", device, current_stream(device), {{self.storage().data(), false}});
  wait_stream(device, current_stream(device), "item()");
  return cpu_view(self).item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  if (!self.has_storage()) return;
  record_use(self.storage().data(), stream.device_index(), static_cast<int>(stream.id()));
}

bool is_dense_both(const at::Tensor& self, const at::Tensor& from) {
  return self.layout() == at::kStrided && from.layout() == at::kStrided;
}

}  // namespace

void register_operators() {
  const auto library = [](const char* name) {
    return new torch::Library(torch::Library::IMPL, name, dispatch_key(), __FILE__, __LINE__);
  };
  // LibTorch would forget the operators with their library, so that both live as long as the process.
  static torch::Library* fallback = library("_");
  static torch::Library* aten = library("aten");
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  aten->impl("empty.memory_format", empty);
  aten->impl("empty_strided", empty_strided);
  aten->impl("as_strided", as_strided);
  aten->impl("view", view);
  aten->impl("_reshape_alias", reshape_alias);
  aten->impl("resize_", resize);
  aten->impl("set_.source_Storage", set_storage);
  aten->impl("set_.source_Storage_storage_offset", set_storage_offset);
  aten->impl("set_.source_Tensor", set_tensor);
  aten->impl("_copy_from", copy_from);
  aten->impl("_copy_from_and_resize", copy_from_and_resize);
  aten->impl("_local_scalar_dense", local_scalar);
  aten->impl("record_stream", record_stream);
  register_convolutions(*aten);
  register_cells(*aten);
  register_sparse();
  // LibTorch's own copy_ goes to CUDA's kernels where a tensor is CUDA's.
  if (dispatch_key() == c10::DispatchKey::CUDA) {
    aten->impl("copy_", copy);
  } else {
    // Or set_data(), by which modules move, would refuse tensors of the CPU and of the device as incompatible.
    aten->impl("_has_compatible_shallow_copy_type", is_dense_both);
  }
}

}  // namespace capstan::emulated

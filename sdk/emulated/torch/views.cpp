#include <ATen/EmptyTensor.h>

#include <cstring>

#include "device/device.hpp"
#include "device/memory.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(exchange_device(device)) {}
  ~DeviceScope() { exchange_device(before_); }
  DeviceScope(const DeviceScope&) = delete;

 private:
  int before_;
};

}  // namespace

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == device_type(); }

at::Tensor cpu_view(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  void* memory = storage.nbytes() > 0 ? host_view(storage.data()) : nullptr;
  c10::Storage as_cpu(c10::Storage::use_byte_size_t(), storage.nbytes(), at::DataPtr(memory, c10::Device(c10::kCPU)),
                      c10::GetAllocator(c10::kCPU), /*resizable=*/true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(as_cpu), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       tensor.dtype());
  c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_neg()) made._set_neg(true);
  if (tensor.is_conj()) made._set_conj(true);
  return made;
}

at::Tensor empty_on(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int device) {
  const DeviceScope scope(device);
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), c10::DispatchKeySet(dispatch_key()),
                                           dtype);
}

at::Tensor to_device(const at::Tensor& cpu, int device) {
  const at::Tensor dense = cpu.is_non_overlapping_and_dense() ? cpu : cpu.contiguous();
  at::Tensor made = empty_on(dense.sizes(), dense.strides(), dense.scalar_type(), device);
  if (dense.nbytes() > 0) {
    std::memcpy(host_view(made.storage().mutable_data()), dense.const_data_ptr(), dense.nbytes());
  }
  return made;
}

}  // namespace capstan::emulated

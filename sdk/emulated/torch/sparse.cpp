// Sparse tensors (COO) of the device, as gradients of embeddings are: LibTorch's own functions keep their parts, and
// the CPU's kernels compute on views of these.

#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include <optional>

#include "torch/compute.hpp"
#include "torch/registration.hpp"

namespace capstan::emulated {
namespace {

/// The CPU's tensor over the same values, sparse where `tensor` is.
at::Tensor cpu_of(const at::Tensor& tensor) {
  if (!tensor.is_sparse()) return view_of(tensor);
  return at::_sparse_coo_tensor_unsafe(cpu_view(tensor._indices()), cpu_view(tensor._values()), tensor.sizes(),
                                       at::TensorOptions(tensor.scalar_type()).layout(at::kSparse),
                                       tensor.is_coalesced());
}

at::Tensor from_cpu(const at::Tensor& tensor, int device) {
  if (!tensor.is_sparse()) return to_device(tensor, device);
  const at::Tensor indices = to_device(tensor._indices(), device), values = to_device(tensor._values(), device);
  return at::_sparse_coo_tensor_unsafe(indices, values, tensor.sizes(), values.options().layout(at::kSparse),
                                       tensor.is_coalesced());
}

int launch_on(const char* name, const at::Tensor& self) {
  return self.is_sparse() ? launch_reading(name, {self._indices(), self._values()}) : launch_reading(name, {self});
}

at::Tensor coalesce(const at::Tensor& self) {
  const int device = launch_on("_coalesce", self);
  return from_cpu(cpu_of(self).coalesce(), device);
}

at::Tensor to_dense(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<bool>) {
  const int device = launch_on("_to_dense", self);
  return to_device(cpu_of(self).to_dense(dtype), device);
}

at::Tensor sum_of(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  launch_on("add", self);
  const int device = launch_on("add", other);
  return from_cpu(at::add(cpu_of(self), cpu_of(other), alpha), device);
}

/// A dense sum takes a sparse gradient in place; a sparse one takes it by parts of its own.
at::Tensor& add_in_place(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  if (!self.is_sparse()) {
    launch_on("add_", other);
    launch("add_", self.device().index(), current_stream(self.device().index()), {{self.storage().data(), true}});
    cpu_view(self).add_(cpu_of(other), alpha);
    return self;
  }
  const at::Tensor sum = sum_of(self, other, alpha);
  self.unsafeGetTensorImpl()->shallow_copy_from(sum.getIntrusivePtr());
  return self;
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool) {
  const at::Tensor from = is_ours(source) ? cpu_of(source) : source;
  const int device = (is_ours(self) ? self : source).device().index();
  if (is_ours(source)) launch_on("copy_sparse_to_sparse_", source);
  wait_stream(device, current_stream(device), "copy of a sparse tensor");
  if (!is_ours(self)) return self.copy_(from);
  self.unsafeGetTensorImpl()->shallow_copy_from(from_cpu(from, device).getIntrusivePtr());
  return self;
}

}  // namespace

void register_sparse() {
  const c10::DispatchKey key =
      dispatch_key() == c10::DispatchKey::CUDA ? c10::DispatchKey::SparseCUDA : c10::DispatchKey::SparsePrivateUse1;
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  aten->impl("_sparse_coo_tensor_with_dims", at::native::new_with_dims_sparse);
  aten->impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  aten->impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  aten->impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  aten->impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  aten->impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  aten->impl("indices", TORCH_FN(at::native::indices_sparse));
  aten->impl("values", TORCH_FN(at::native::values_sparse));
  aten->impl("_indices", TORCH_FN(at::native::_indices_sparse));
  aten->impl("_values", TORCH_FN(at::native::_values_sparse));
  aten->impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  aten->impl("empty.memory_format", at::native::empty_sparse);
  aten->impl("copy_sparse_to_sparse_", copy);
  aten->impl("clone", TORCH_FN(at::native::clone_sparse));
  aten->impl("_coalesce", coalesce);
  aten->impl("_to_dense", to_dense);
  aten->impl("add.Tensor", sum_of);
  aten->impl("add_.Tensor", add_in_place);
}

}  // namespace capstan::emulated

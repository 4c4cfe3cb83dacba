#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>

/// LibTorch's side of the emulated device. A process has it as one type of device.
namespace capstan::emulated {

/// Makes the emulated device LibTorch's device of this type, CUDA or PrivateUse1, once in a process: allocators, guard,
/// hooks, generators, and operators, which run by the CPU's kernels. Throws std::runtime_error where the process has
/// the emulated device as another type, or CUDA's own. `name` is what LibTorch calls PrivateUse1: "emulated".
void become(c10::DeviceType type, const char* name);

/// The type that become() was given.
c10::DeviceType device_type();
c10::DispatchKey dispatch_key();

c10::Allocator& device_allocator();
/// The pinned host memory's, at::HostAllocator.
void register_host_allocator();
void register_guard();
void register_hooks(const char* name);

/// The generator of a device; a negative index: the current device's.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
/// The CPU generator by which `generator` draws; `generator` itself where it is no device's.
at::Generator cpu_generator(const at::Generator& generator);

/// Registers the operators that need more than the CPU's kernels, and the fallback for the others.
void register_operators();

bool is_ours(const at::Tensor& tensor);
/// A CPU tensor over the same bytes.
at::Tensor cpu_view(const at::Tensor& tensor);
at::Tensor empty_on(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int device);
/// A copy on the device, of the same strides where `cpu` is dense.
at::Tensor to_device(const at::Tensor& cpu, int device);

}  // namespace capstan::emulated

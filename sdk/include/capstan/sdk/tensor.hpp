#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "capstan/sdk/component.hpp"

/// Borrowed tensors, read through LibTorch's stable C functions: no handle is made or released.
namespace capstan::sdk {

enum class Dtype { kFloat32, kBFloat16, kFloat16, kInt64, kUInt8, kInt8, kOther };

/// The values of a contiguous tensor; `data` points into the memory of its device.
struct Values {
  void* data = nullptr;
  Dtype dtype = Dtype::kOther;

  bool is_float() const { return dtype == Dtype::kFloat32 || dtype == Dtype::kBFloat16 || dtype == Dtype::kFloat16; }
};

namespace detail {

/// LibTorch's numbers for what we ask about all the time.
struct TorchCodes {
  std::int32_t float32 = aoti_torch_dtype_float32();
  std::int32_t bfloat16 = aoti_torch_dtype_bfloat16();
  std::int32_t float16 = aoti_torch_dtype_float16();
  std::int32_t int64 = aoti_torch_dtype_int64();
  std::int32_t uint8 = aoti_torch_dtype_uint8();
  std::int32_t int8 = aoti_torch_dtype_int8();
  std::int32_t cpu = aoti_torch_device_type_cpu();
};

inline const TorchCodes& torch_codes() {
  static const TorchCodes codes;
  return codes;
}

inline void check_torch(AOTITorchError status, const char* call) {
  if (status != 0) throw Error(std::string("LibTorch: ") + call + " failed");
}

}  // namespace detail

/// True for a tensor in host memory.
inline bool on_cpu(capstan_tensor tensor) {
  std::int32_t device = 0;
  detail::check_torch(aoti_torch_get_device_type(tensor, &device), "get_device_type");
  return device == detail::torch_codes().cpu;
}

/// How many elements a tensor has.
inline std::int64_t numel_of(capstan_tensor tensor) {
  std::int64_t numel = 0;
  detail::check_torch(aoti_torch_get_numel(tensor, &numel), "get_numel");
  return numel;
}

/// Its shape, which lives as long as the tensor keeps it.
inline std::span<const std::int64_t> shape_of(capstan_tensor tensor) {
  std::int64_t dims = 0;
  std::int64_t* sizes = nullptr;
  detail::check_torch(aoti_torch_get_dim(tensor, &dims), "get_dim");
  detail::check_torch(aoti_torch_get_sizes(tensor, &sizes), "get_sizes");
  return {sizes, static_cast<std::size_t>(dims)};
}

/// Which memory something is in.
enum class Place { kHost, kCuda };

namespace detail {
inline std::int32_t device_type(Place place) {
  return place == Place::kCuda ? aoti_torch_device_type_cuda() : torch_codes().cpu;
}
/// The index by which LibTorch takes the current device of that type.
inline std::int32_t device_index(Place place) { return place == Place::kCuda ? -1 : 0; }
}  // namespace detail

/// A tensor's values in host memory, contiguous: a copy, for which the calling thread waits. Throws Error.
class HostCopy {
 public:
  explicit HostCopy(capstan_tensor tensor) {
    const std::span<const std::int64_t> shape = shape_of(tensor);
    std::int64_t strides[kMostDims], stride = 1;
    if (shape.size() > kMostDims) throw Error("a tensor has more than 64 dimensions.");
    for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
    std::int32_t dtype = 0;
    detail::check_torch(aoti_torch_get_dtype(tensor, &dtype), "get_dtype");
    detail::check_torch(aoti_torch_empty_strided(static_cast<std::int64_t>(shape.size()), shape.data(), strides, dtype,
                                                 detail::torch_codes().cpu, 0, &copy_),
                        "empty_strided");
    if (aoti_torch_copy_(copy_, tensor, /*non_blocking=*/0) == 0) return;
    aoti_torch_delete_tensor_object(copy_);
    throw Error("LibTorch: a tensor could not be copied to host memory.");
  }
  ~HostCopy() { aoti_torch_delete_tensor_object(copy_); }
  HostCopy(const HostCopy&) = delete;

  capstan_tensor tensor() const { return copy_; }

 private:
  static constexpr std::size_t kMostDims = 64;  // of LibTorch

  AtenTensorHandle copy_ = nullptr;
};

/// The values of a contiguous tensor.
inline Values values_of(capstan_tensor tensor) {
  const auto& codes = detail::torch_codes();
  Values values;
  std::int32_t dtype = 0;
  detail::check_torch(aoti_torch_get_data_ptr(tensor, &values.data), "get_data_ptr");
  detail::check_torch(aoti_torch_get_dtype(tensor, &dtype), "get_dtype");
  if (dtype == codes.float32) {
    values.dtype = Dtype::kFloat32;
  } else if (dtype == codes.bfloat16) {
    values.dtype = Dtype::kBFloat16;
  } else if (dtype == codes.float16) {
    values.dtype = Dtype::kFloat16;
  } else if (dtype == codes.int64) {
    values.dtype = Dtype::kInt64;
  } else if (dtype == codes.uint8) {
    values.dtype = Dtype::kUInt8;
  } else if (dtype == codes.int8) {
    values.dtype = Dtype::kInt8;
  }
  return values;
}

/// "bfloat16", as configurations write it, for messages.
inline std::string dtype_name(capstan_tensor tensor) {
  std::int32_t dtype = 0;
  detail::check_torch(aoti_torch_get_dtype(tensor, &dtype), "get_dtype");
  struct Name {
    std::int32_t code;
    const char* name;
  };
  const Name names[] = {{aoti_torch_dtype_float32(), "float32"},     {aoti_torch_dtype_float64(), "float64"},
                        {aoti_torch_dtype_bfloat16(), "bfloat16"},   {aoti_torch_dtype_float16(), "float16"},
                        {aoti_torch_dtype_int64(), "int64"},         {aoti_torch_dtype_int32(), "int32"},
                        {aoti_torch_dtype_int16(), "int16"},         {aoti_torch_dtype_int8(), "int8"},
                        {aoti_torch_dtype_uint8(), "uint8"},         {aoti_torch_dtype_bool(), "bool"},
                        {aoti_torch_dtype_complex64(), "complex64"}, {aoti_torch_dtype_complex128(), "complex128"}};
  for (const Name& known : names) {
    if (known.code == dtype) return known.name;
  }
  return "LibTorch's dtype " + std::to_string(dtype);
}

}  // namespace capstan::sdk

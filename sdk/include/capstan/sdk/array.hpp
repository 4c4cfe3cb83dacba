#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "capstan/sdk/tensor.hpp"

namespace capstan::sdk {

/// Uninitialised memory of a component's own, from LibTorch's allocator: in host memory, or in that of the current CUDA
/// device, where data() is a device pointer and freeing waits for nothing. Throws Error where there is too little.
template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Array() = default;
  Array(Place place, std::size_t size) : Array(detail::device_type(place), detail::device_index(place), size) {}
  /// On the device of a tensor, of whatever type.
  Array(capstan_tensor beside, std::size_t size) : Array(device_type_of(beside), device_index_of(beside), size) {}
  Array(Array&& other) noexcept { swap(other); }
  Array& operator=(Array&& other) noexcept {
    Array taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Array() {
    if (tensor_) aoti_torch_delete_tensor_object(tensor_);
  }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<T> span() const { return {data_, size_}; }

 private:
  static std::int32_t device_type_of(capstan_tensor tensor) {
    std::int32_t type = 0;
    detail::check_torch(aoti_torch_get_device_type(tensor, &type), "get_device_type");
    return type;
  }
  static std::int32_t device_index_of(capstan_tensor tensor) {
    std::int32_t index = 0;
    detail::check_torch(aoti_torch_get_device_index(tensor, &index), "get_device_index");
    return index;
  }

  Array(std::int32_t device_type, std::int32_t device_index, std::size_t size) : size_(size) {
    const auto bytes = static_cast<std::int64_t>(size * sizeof(T));
    const std::int64_t stride = 1;
    if (aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(), device_type, device_index, &tensor_) !=
        0) {
      throw Error("LibTorch has no " + std::to_string(bytes) + " bytes of " +
                  (device_type == detail::device_type(Place::kHost) ? "host memory." : "the device's memory."));
    }
    void* data = nullptr;
    detail::check_torch(aoti_torch_get_data_ptr(tensor_, &data), "get_data_ptr");
    data_ = static_cast<T*>(data);
  }
  void swap(Array& other) noexcept {
    std::swap(tensor_, other.tensor_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  AtenTensorHandle tensor_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace capstan::sdk

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "capstan/sdk/component.hpp"
#include "capstan/sdk/tensor.hpp"

namespace capstan::sdk {

/// A tensor on memory of the component's own, for functions of the host that take one. One-dimensional. `values` are at
/// `place`.
class BorrowedTensor {
 public:
  template <class T>
  explicit BorrowedTensor(std::span<T> values, Place place = Place::kHost)
      : BorrowedTensor(const_cast<std::remove_const_t<T>*>(values.data()), values.size(),
                       code_of<std::remove_const_t<T>>(), place) {}
  BorrowedTensor(const BorrowedTensor&) = delete;
  BorrowedTensor& operator=(const BorrowedTensor&) = delete;
  ~BorrowedTensor() { aoti_torch_delete_tensor_object(tensor_); }

  capstan_tensor get() const { return tensor_; }

 private:
  BorrowedTensor(void* data, std::size_t count, std::int32_t dtype, Place place) {
    const auto size = static_cast<std::int64_t>(count);
    const std::int64_t stride = 1;
    if (count == 0) data = nullptr;  // LibTorch could not tell the device of an address past the end
    detail::check_torch(
        aoti_torch_create_tensor_from_blob(data, 1, &size, &stride, 0, dtype, detail::device_type(place),
                                           detail::device_index(place), &tensor_),
        "create_tensor_from_blob");
  }
  template <class T>
  static std::int32_t code_of() {
    if constexpr (std::is_same_v<T, float>) {
      return aoti_torch_dtype_float32();
    } else if constexpr (std::is_same_v<T, double>) {
      return aoti_torch_dtype_float64();
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return aoti_torch_dtype_int64();
    } else {
      static_assert(std::is_same_v<T, std::uint8_t>, "collectives take float, double, int64_t and uint8_t");
      return aoti_torch_dtype_uint8();
    }
  }

  capstan_tensor tensor_ = nullptr;
};

/// The engine's collectives over the data-parallel group, for optimizers with the trait own_communication and for
/// compressions as a step ends. Valid for the duration of the call that was given it. Every rank must make the same
/// calls in the same order, with the same sizes; they return when the result is there. Throws the host's text when
/// another process is gone.
class Collectives {
 public:
  Collectives(const capstan_host* host, capstan_error* error, Place place = Place::kHost)
      : host_(host), error_(error), place_(place) {}

  /// The same for spans of memory at `place`. On a CUDA device they wait for what the engine's stream has queued, and
  /// what is queued there afterwards sees the result.
  Collectives on(Place place) const { return {host_, error_, place}; }

  std::size_t rank() const { return host_->rank; }
  std::size_t world_size() const { return host_->world_size; }

  /// The collectives of the group of ranks that give the same color: its rank() and world_size() count the group's
  /// members, in the order of their ranks. All ranks call it together, and then make the same calls on their groups
  /// together, with tensors of any sizes that fit the group. Asking again for the same groups costs little.
  Collectives split(std::uint32_t color) const {
    const capstan_host* group = nullptr;
    check(host_->split(host_->ctx, color, &group, error_));
    return {group, error_, place_};
  }

  /// `values` becomes the sum over all ranks, with the same bits on each.
  template <class T>
  void all_reduce_sum(std::span<T> values) const {
    const BorrowedTensor tensor(values, place_);
    check(host_->all_reduce_sum(host_->ctx, tensor.get(), error_));
  }
  /// `out` holds the ranks' values one after the other: world_size() times as many.
  template <class T>
  void all_gather(std::span<const T> in, std::span<T> out) const {
    require(in.size() * world_size() == out.size(), "all_gather", in.size(), out.size(), "times world_size as many");
    const BorrowedTensor from(in, place_), to(out, place_);
    check(host_->all_gather(host_->ctx, to.get(), from.get(), error_));
  }
  /// Part i of `in`, cut into world_size() equal parts, goes to rank i; part i of `out` came from rank i.
  template <class T>
  void all_to_all(std::span<const T> in, std::span<T> out) const {
    require(in.size() == out.size() && in.size() % world_size() == 0, "all_to_all", in.size(), out.size(),
            "the same number, a multiple of world_size");
    const BorrowedTensor from(in, place_), to(out, place_);
    check(host_->all_to_all(host_->ctx, to.get(), from.get(), error_));
  }
  /// `values` becomes what rank `root` has.
  template <class T>
  void broadcast(std::span<T> values, std::uint32_t root) const {
    const BorrowedTensor tensor(values, place_);
    check(host_->broadcast(host_->ctx, tensor.get(), root, error_));
  }

 private:
  static void require(bool fits, const char* call, std::size_t in, std::size_t out, const char* rule) {
    if (!fits) {
      throw Error(std::string(call) + ": " + std::to_string(in) + " values in and " + std::to_string(out) +
                  " out; out must be " + rule + ".");
    }
  }

  const capstan_host* host_;
  capstan_error* error_;
  Place place_;
};

}  // namespace capstan::sdk

#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capstan/sdk/optimizer.hpp"

/// Lists of tensors and LibTorch's operators on them, for optimizers that run on every device: `devices = "any"`.
///
///   void update(const sdk::Slots& slots, const sdk::Step& step) {
///     const sdk::TensorSlots all(slots);
///     const sdk::Tensors g = all.gradients(step.grad_scale());
///     sdk::Tensors p = all.parameters(), m = all.state(0);
///     m.lerp_(g, 0.1);
///     p.add_(m, -lr);
///     all.store_state(0, m);
///   }
///
/// A call is queued on the calling thread's stream of the device and waits for nothing. A list has its tensors on one
/// device. Every function throws Error where lists do not fit together, and where LibTorch's operator fails, whose own
/// message LibTorch prints to standard error.
namespace capstan::sdk {

namespace detail {

/// Calls an operator whose arguments are on the stack, where its results are then.
inline void call_on_stack(const char* name, const char* overload, std::span<StableIValue> stack) {
  if (torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION) != 0) {
    throw Error(std::string("LibTorch: the operator ") + name +
                " failed. Its message stands above, in standard error.");
  }
}

template <class... Args>
StableIValue call_operator(const char* name, const char* overload, const Args&... args) {
  StableIValue stack[] = {torch::stable::detail::from(args)...};
  call_on_stack(name, overload, stack);
  return stack[0];
}

/// A tensor that the caller owns, for one that the host lends.
inline torch::stable::Tensor held(capstan_tensor tensor) {
  AtenTensorHandle handle = nullptr;
  check_torch(aoti_torch_new_tensor_handle(tensor, &handle), "new_tensor_handle");
  return torch::stable::Tensor(handle);
}

}  // namespace detail

/// A number for all tensors of a list, or one for each.
class Scalars {
 public:
  Scalars(double value) : values_{value} {}                            // NOLINT(google-explicit-constructor)
  Scalars(std::vector<double> values) : values_(std::move(values)) {}  // NOLINT(google-explicit-constructor)

  /// One for each of `count` tensors. Throws Error when there are neither one nor `count`.
  std::vector<double> for_each_of(std::size_t count) const {
    if (values_.size() == count) return values_;
    if (values_.size() == 1) return std::vector<double>(count, values_.front());
    throw Error("a list of " + std::to_string(count) + " tensors takes one number, or one a tensor; it got " +
                std::to_string(values_.size()) + ".");
  }

 private:
  std::vector<double> values_;
};

/// A list of tensors on one device. Copies of a list share its tensors: clone() has its own.
class [[gnu::visibility("hidden")]] Tensors {
 public:
  Tensors() = default;
  explicit Tensors(std::vector<torch::stable::Tensor> tensors) : tensors_(std::move(tensors)) {}

  std::size_t size() const { return tensors_.size(); }
  bool empty() const { return tensors_.empty(); }
  const torch::stable::Tensor& operator[](std::size_t index) const { return tensors_[index]; }
  auto begin() const { return tensors_.begin(); }
  auto end() const { return tensors_.end(); }
  void push_back(torch::stable::Tensor tensor) { tensors_.push_back(std::move(tensor)); }

  /// In place, element by element. A device that has kernels for lists takes one launch a list, for any number of
  /// tensors.
  Tensors& mul_(const Scalars& factor) { return in_place("capstan::list_mul_", "mul_", {}, factor); }
  Tensors& add_(const Scalars& number) { return in_place("capstan::list_add_number_", "add_", {}, number); }
  Tensors& clamp_min_(const Scalars& least) { return in_place("capstan::list_clamp_min_", "clamp_min_", {}, least); }
  /// self + alpha * other
  Tensors& add_(const Tensors& other, const Scalars& alpha = 1.0) {
    return in_place("capstan::list_add_", "add_", {&other}, alpha);
  }
  /// self + weight * (end - self)
  Tensors& lerp_(const Tensors& end, const Scalars& weight) {
    return in_place("capstan::list_lerp_", "lerp_", {&end}, weight);
  }
  /// self + value * a * b
  Tensors& addcmul_(const Tensors& a, const Tensors& b, const Scalars& value = 1.0) {
    return in_place("capstan::list_addcmul_", "addcmul_", {&a, &b}, value);
  }
  /// self + value * a / b
  Tensors& addcdiv_(const Tensors& a, const Tensors& b, const Scalars& value = 1.0) {
    return in_place("capstan::list_addcdiv_", "addcdiv_", {&a, &b}, value);
  }
  Tensors& mul_(const Tensors& other) { return in_place("aten::_foreach_mul_", "List", "mul_", &other); }
  Tensors& div_(const Tensors& other) { return in_place("aten::_foreach_div_", "List", "div_", &other); }
  Tensors& maximum_(const Tensors& other) { return in_place("aten::_foreach_maximum_", "List", "maximum_", &other); }
  Tensors& sqrt_() { return in_place("aten::_foreach_sqrt_", "", "sqrt_", nullptr); }
  Tensors& abs_() { return in_place("aten::_foreach_abs_", "", "abs_", nullptr); }
  Tensors& sign_() { return in_place("aten::_foreach_sign_", "", "sign_", nullptr); }
  Tensors& neg_() { return in_place("aten::_foreach_neg_", "", "neg_", nullptr); }
  Tensors& zero_() { return in_place("aten::_foreach_zero_", "", "zero_", nullptr); }

  /// New tensors, contiguous.
  Tensors clone() const {
    return each([](const torch::stable::Tensor& tensor) { return torch::stable::clone(tensor); });
  }
  Tensors sqrt() const { return std::move(clone().sqrt_()); }
  /// The values as float32: the tensors themselves where they are float32 already.
  Tensors to_float32() const {
    return each([](const torch::stable::Tensor& tensor) {
      if (tensor.scalar_type() == torch::headeronly::ScalarType::Float) return tensor;
      return torch::stable::to(tensor, torch::headeronly::ScalarType::Float);
    });
  }
  /// Copies values, rounded to the dtype of these tensors. A tensor that is its own source stays as it is.
  Tensors& copy_(const Tensors& from) {
    check_beside(from, "copy_", kNumel);
    for (std::size_t i = 0; i < size(); ++i) {
      if (tensors_[i].data_ptr() == from[i].data_ptr()) continue;
      detail::check_torch(aoti_torch_copy_(tensors_[i].get(), from[i].get(), /*non_blocking=*/1), "copy_");
    }
    return *this;
  }

  /// The Euclidean norm of each tensor: tensors of no dimension, so that nothing waits for them. float32.
  Tensors norm() const {
    if (empty()) return {};
    const StableIValue norms = detail::call_operator("capstan::list_norm", "", tensors_);
    return Tensors(torch::stable::detail::to<std::vector<torch::stable::Tensor>>(norms));
  }

  /// The mean over one dimension, which stays as one of size 1; negative: counted from the last.
  Tensors mean(std::int64_t dimension) const {
    const std::optional<std::vector<std::int64_t>> dimensions{{dimension}};
    return each([&](const torch::stable::Tensor& tensor) {
      const StableIValue mean = detail::call_operator("aten::mean", "dim", tensor, dimensions, true, std::nullopt);
      return torch::stable::detail::to<torch::stable::Tensor>(mean);
    });
  }

  /// Views of the same values: in another shape; of a matrix with its dimensions swapped; of a matrix's diagonal.
  Tensors view(const std::vector<std::vector<std::int64_t>>& shapes) const {
    if (shapes.size() != size()) {
      throw Error("view: " + std::to_string(size()) + " tensors and " + std::to_string(shapes.size()) + " shapes.");
    }
    Tensors views;
    for (std::size_t i = 0; i < size(); ++i) views.push_back(torch::stable::view(tensors_[i], shapes[i]));
    return views;
  }
  Tensors transposed() const {
    return each([](const torch::stable::Tensor& tensor) { return torch::stable::transpose(tensor, 0, 1); });
  }
  Tensors diagonal() const {
    return each([](const torch::stable::Tensor& tensor) {
      constexpr std::int64_t kOffset = 0, kRows = 0, kColumns = 1;
      const StableIValue view = detail::call_operator("aten::diagonal", "", tensor, kOffset, kRows, kColumns);
      return torch::stable::detail::to<torch::stable::Tensor>(view);
    });
  }
  /// The product of each matrix and the one beside it.
  Tensors matmul(const Tensors& other) const {
    check_beside(other, "matmul", kDevice);
    Tensors products;
    for (std::size_t i = 0; i < size(); ++i) products.push_back(torch::stable::matmul(tensors_[i], other[i]));
    return products;
  }

 private:
  enum Fit { kDevice, kNumel };

  template <class Function>
  Tensors each(Function && function) const {
    Tensors made;
    made.tensors_.reserve(size());
    for (const torch::stable::Tensor& tensor : tensors_) made.push_back(function(tensor));
    return made;
  }

  /// An operator of Capstan's with a number a tensor: those of LibTorch take an at::Scalar, which the stable ABI lacks.
  Tensors& in_place(const char* name, const char* function, std::initializer_list<const Tensors*> others,
                    const Scalars& numbers) {
    const std::vector<double> each_number = numbers.for_each_of(size());
    std::vector<StableIValue> stack;
    for (const Tensors* other : others) check_beside(*other, function, kNumel);
    if (empty()) return *this;
    stack.push_back(torch::stable::detail::from(tensors_));
    for (const Tensors* other : others) stack.push_back(torch::stable::detail::from(other->tensors_));
    stack.push_back(torch::stable::detail::from(each_number));
    detail::call_on_stack(name, "", stack);
    return *this;
  }
  Tensors& in_place(const char* name, const char* overload, const char* function, const Tensors* other) {
    if (other) check_beside(*other, function, kNumel);
    if (empty()) return *this;
    if (other) {
      detail::call_operator(name, overload, tensors_, other->tensors_);
    } else {
      detail::call_operator(name, overload, tensors_);
    }
    return *this;
  }

  /// Throws unless `other` has as many tensors, each on the device of the one beside it, and of as many elements or
  /// one.
  void check_beside(const Tensors& other, const char* function, Fit fit) const {
    const std::string start = std::string(function) + ": ";
    if (other.size() != size()) {
      throw Error(start + "lists of " + std::to_string(size()) + " and of " + std::to_string(other.size()) +
                  " tensors.");
    }
    for (std::size_t i = 0; i < size(); ++i) {
      const std::string which = start + "the tensors " + std::to_string(i) + " of the two lists ";
      std::int32_t types[2], indices[2];
      device_of(tensors_[i], types[0], indices[0]);
      device_of(other[i], types[1], indices[1]);
      if (types[0] != types[1] || indices[0] != indices[1]) throw Error(which + "are on different devices.");
      const std::int64_t mine = numel_of(tensors_[i].get()), its = numel_of(other[i].get());
      if (fit == kNumel && mine != its && its != 1) {
        throw Error(which + "have " + std::to_string(mine) + " and " + std::to_string(its) + " elements.");
      }
    }
  }
  static void device_of(const torch::stable::Tensor& tensor, std::int32_t& type, std::int32_t& index) {
    detail::check_torch(aoti_torch_get_device_type(tensor.get(), &type), "get_device_type");
    detail::check_torch(aoti_torch_get_device_index(tensor.get(), &index), "get_device_index");
  }

  std::vector<torch::stable::Tensor> tensors_;
};

/// Some slots of a call as lists of tensors, on whatever device they are. Every tensor has one dimension, as a slot may
/// be a part of a parameter; view() gives matrices their shape.
class TensorSlots {
 public:
  explicit TensorSlots(std::vector<Slot> slots) : slots_(std::move(slots)) {}
  explicit TensorSlots(const Slots& slots) : slots_(slots.begin(), slots.end()) {}

  std::size_t size() const { return slots_.size(); }
  const Slot& operator[](std::size_t index) const { return slots_[index]; }

  /// Master values, float32: what changes them changes the parameters.
  Tensors parameters() const {
    return list([](const Slot& slot) { return slot.raw()->param; });
  }
  /// New tensors: the gradients as float32, multiplied by `scale`.
  Tensors gradients(double scale) const {
    const Tensors raw = list([](const Slot& slot) { return slot.raw()->grad; });
    Tensors scaled;
    for (const torch::stable::Tensor& gradient : raw) {
      const bool exact = gradient.scalar_type() == torch::headeronly::ScalarType::Float;
      scaled.push_back(exact ? torch::stable::clone(gradient)
                             : torch::stable::to(gradient, torch::headeronly::ScalarType::Float));
    }
    if (scale != 1.0) scaled.mul_(scale);
    return scaled;
  }
  /// State `index` of each slot as float32: itself where it is float32, else a copy that store_state() writes back.
  Tensors state(std::size_t index) const { return raw_state(index).to_float32(); }
  void store_state(std::size_t index, const Tensors& values) const { raw_state(index).copy_(values); }

 private:
  template <class Which>
  Tensors list(Which&& which) const {
    Tensors tensors;
    for (const Slot& slot : slots_) {
      const torch::stable::Tensor tensor = detail::held(which(slot));
      tensors.push_back(torch::stable::view(tensor, std::vector<std::int64_t>{tensor.numel()}));
    }
    return tensors;
  }
  Tensors raw_state(std::size_t index) const {
    return list([index](const Slot& slot) { return slot.state_tensor(index); });
  }

  std::vector<Slot> slots_;
};

/// The slots of each parameter group for which wanted(slot) is true, in the order of the groups; of a group without
/// such slots in this call, none.
template <class Wanted>
std::vector<TensorSlots> by_group(const Slots& slots, const Step& step, Wanted&& wanted) {
  std::vector<std::vector<Slot>> of_group(step.group_count());
  for (const Slot slot : slots) {
    if (wanted(slot)) of_group.at(slot.group()).push_back(slot);
  }
  std::vector<TensorSlots> lists;
  for (std::vector<Slot>& list : of_group) lists.emplace_back(std::move(list));
  return lists;
}

/// All slots of each parameter group.
inline std::vector<TensorSlots> by_group(const Slots& slots, const Step& step) {
  return by_group(slots, step, [](const Slot&) { return true; });
}

}  // namespace capstan::sdk

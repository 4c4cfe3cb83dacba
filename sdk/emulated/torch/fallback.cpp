#include "torch/fallback.hpp"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "device/counts.hpp"
#include "device/device.hpp"
#include "device/order.hpp"
#include "torch/access.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {
namespace {

/// One call of an operator: its tensors as the CPU's, and back.
class CpuCall {
 public:
  CpuCall(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack) {}

  void run() {
    take_arguments();
    const auto& schema = op_.schema();
    name_ = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
    launch(name_.c_str(), device_, current_stream(device_), accesses_);
    note_operator(name_);
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    grow_outputs();
    give_results();
  }

 private:
  struct Pair {
    at::Tensor original, view;
    bool write;
  };

  std::size_t begin() const { return stack_.size() - op_.schema().arguments().size(); }

  at::Tensor take(const at::Tensor& tensor, bool write) {
    if (!is_ours(tensor)) return tensor;
    device_ = tensor.device().index();
    has_device_ = true;
    add_access(accesses_, tensor, write);
    for (Pair& pair : pairs_) {
      if (!pair.original.is_same(tensor)) continue;
      pair.write |= write;
      return pair.view;
    }
    pairs_.push_back({tensor, cpu_view(tensor), write});
    return pairs_.back().view;
  }

  void take_tensors(c10::IValue& value, bool write) {
    if (value.isTensor()) {
      value = take(value.toTensor(), write);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(take(tensor, write));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional<at::Tensor>(take(*tensor, write)) : std::nullopt);
      }
      value = list;
    }
  }

  void take_arguments() {
    const auto& arguments = op_.schema().arguments();
    const std::size_t first = begin();
    std::vector<std::size_t> default_generators;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = stack_[first + i];
      const auto* alias = arguments[i].alias_info();
      take_tensors(value, alias != nullptr && alias->isWrite());
      if (value.isDevice() && value.toDevice().type() == device_type()) {
        if (!has_device_ && value.toDevice().has_index()) device_ = value.toDevice().index();
        value = c10::Device(c10::kCPU);
      } else if (value.isGenerator()) {
        value = cpu_generator(value.toGenerator());
      } else if (value.isNone() && arguments[i].type()->str().find("Generator") != std::string::npos) {
        default_generators.push_back(first + i);
      }
    }
    for (const std::size_t at : default_generators) {
      stack_[at] = cpu_generator(default_generator(static_cast<c10::DeviceIndex>(device_)));
    }
    widen_softmax(first);
  }

  /// Softmax of a 16-bit tensor to float32 in one call is CUDA's alone.
  void widen_softmax(std::size_t first) {
    const std::string& name = op_.schema().name();
    if (name != "aten::_log_softmax" && name != "aten::_softmax") return;
    if (!stack_[first + 2].isBool() || !stack_[first + 2].toBool()) return;
    stack_[first] = stack_[first].toTensor().to(at::kFloat);
    stack_[first + 2] = false;
  }

  /// An output that the operator has made larger gets memory of its own.
  void grow_outputs() {
    for (const Pair& pair : pairs_) {
      if (!pair.write || pair.view.sizes() == pair.original.sizes()) continue;
      const at::Tensor fresh = to_device(pair.view, device_);
      c10::TensorImpl* impl = pair.original.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(fresh.storage());
      impl->set_sizes_and_strides(fresh.sizes(), fresh.strides(), 0);
    }
  }

  at::Tensor give(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    for (const Pair& pair : pairs_) {
      if (pair.view.is_same(tensor)) return pair.original;
    }
    for (const Pair& pair : pairs_) {
      if (!tensor.has_storage()) break;
      if (pair.view.storage().unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl()) continue;
      at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(pair.original.storage()),
                                                                 c10::DispatchKeySet(dispatch_key()), tensor.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
      return view;
    }
    at::Tensor made = to_device(tensor, device_);
    add_access(results_, made, true);
    return made;
  }

  void give_results() {
    for (std::size_t i = stack_.size() - op_.schema().returns().size(); i < stack_.size(); ++i) {
      c10::IValue& value = stack_[i];
      if (value.isTensor()) {
        value = give(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(give(tensor));
        value = list;
      }
    }
    if (!results_.empty()) launch(name_.c_str(), device_, current_stream(device_), results_);
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::vector<Pair> pairs_;
  std::vector<Access> accesses_, results_;
  std::string name_;
  int device_ = current_device();
  bool has_device_ = false;  // a tensor named it
};

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  CpuCall(op, *stack).run();
}

}  // namespace capstan::emulated

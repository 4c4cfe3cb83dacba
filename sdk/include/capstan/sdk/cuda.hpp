#pragma once

#include <string>

#include "capstan/sdk/optimizer.hpp"

/// For optimizers whose manifest says device = "cuda".
namespace capstan::sdk {

/// A slot whose tensors are in device memory: the same accessors as Slot, with device pointers. They throw, naming the
/// parameter, when a tensor is elsewhere or of another type.
class CudaSlot {
 public:
  explicit CudaSlot(const Slot& slot) : slot_(slot) {}

  std::uint32_t group() const { return slot_.group(); }
  std::size_t numel() const { return slot_.numel(); }

  /// Master values.
  float* param() const {
    const Values values = floats(slot_.raw()->param, "parameter");
    if (values.dtype != Dtype::kFloat32) slot_.fail("the parameter must be float32.");
    return static_cast<float*>(values.data);
  }
  Values grad() const { return floats(slot_.raw()->grad, "gradient"); }
  Values state(std::size_t index) const { return floats(slot_.raw()->state[index], "state"); }
  /// States declared `like = "scalar"` are in host memory on every device.
  std::int64_t& counter(std::size_t index) const { return slot_.counter(index); }
  float& number(std::size_t index) const { return slot_.number(index); }
  /// As Slot::compute().
  Values compute() const { return slot_.raw()->compute ? floats(slot_.raw()->compute, "compute copy") : Values{}; }
  void mark_compute_written() const { slot_.mark_compute_written(); }

  /// Throws "parameter '<name>': <text>".
  [[noreturn]] void fail(const std::string& text) const { slot_.fail(text); }

 private:
  Values floats(capstan_tensor tensor, const char* what) const {
    if (!on_cuda(tensor)) slot_.fail(std::string("the ") + what + " is not in the memory of a CUDA device.");
    const Values values = values_of(tensor);
    if (!values.is_float()) {
      slot_.fail(std::string("the ") + what + " must be float32, bfloat16 or float16; it is " + dtype_name(tensor) +
                 ".");
    }
    return values;
  }

  Slot slot_;
};

}  // namespace capstan::sdk

#pragma once

#include <string>

#include "capstan/sdk/optimizer.hpp"

/// For optimizers whose manifest names a device, `device = "cuda"`.
namespace capstan::sdk {

/// A slot whose tensors are in device memory: the same accessors as Slot, with device pointers. They throw, naming the
/// parameter, when a tensor is elsewhere or of another type.
class DeviceSlot {
 public:
  explicit DeviceSlot(const Slot& slot) : slot_(slot) {}

  std::uint32_t group() const { return slot_.group(); }
  std::size_t numel() const { return slot_.numel(); }
  /// Name, shape and place in the whole parameter: what needs no values.
  const Slot& slot() const { return slot_; }

  /// Master values.
  float* param() const {
    const Values values = floats(slot_.raw()->param, "parameter");
    if (values.dtype != Dtype::kFloat32) slot_.fail("the parameter must be float32.");
    return static_cast<float*>(values.data);
  }
  Values grad() const { return floats(slot_.raw()->grad, "gradient"); }
  Values state(std::size_t index) const { return floats(slot_.state_tensor(index), "state"); }
  /// State `index` as float32.
  float* floats(std::size_t index) const {
    const Values values = state(index);
    if (values.dtype != Dtype::kFloat32) slot_.fail("state " + std::to_string(index) + " must be float32.");
    return static_cast<float*>(values.data);
  }
  /// A state declared `dtype = "uint8"`, or `"int8"`.
  std::uint8_t* bytes(std::size_t index) const {
    return static_cast<std::uint8_t*>(integers(index, Dtype::kUInt8, "uint8"));
  }
  std::int8_t* signed_bytes(std::size_t index) const {
    return static_cast<std::int8_t*>(integers(index, Dtype::kInt8, "int8"));
  }
  /// States declared `like = "scalar"` are in host memory on every device.
  std::int64_t& counter(std::size_t index) const { return slot_.counter(index); }
  float& number(std::size_t index) const { return slot_.number(index); }
  /// As Slot::compute().
  Values compute() const { return slot_.raw()->compute ? floats(slot_.raw()->compute, "compute copy") : Values{}; }
  void mark_compute_written() const { slot_.mark_compute_written(); }

  /// Throws "parameter '<name>': <text>".
  [[noreturn]] void fail(const std::string& text) const { slot_.fail(text); }

 private:
  void* integers(std::size_t index, Dtype dtype, const char* expected) const {
    const capstan_tensor tensor = slot_.state_tensor(index);
    const Values values = values_of(tensor);
    if (on_cpu(tensor) || values.dtype != dtype) {
      slot_.fail("state " + std::to_string(index) + " must be " + expected + " in the memory of a device.");
    }
    return values.data;
  }

  Values floats(capstan_tensor tensor, const char* what) const {
    if (on_cpu(tensor)) slot_.fail(std::string("the ") + what + " is not in the memory of a device.");
    const Values values = values_of(tensor);
    if (!values.is_float()) {
      slot_.fail(std::string("the ") + what + " must be float32, bfloat16 or float16; it is " + dtype_name(tensor) +
                 ".");
    }
    return values;
  }

  Slot slot_;
};

/// State `index` among those declared with `extent = "model"`, in float32: as Step::model_state(), a device pointer.
inline float* device_model_state(const Step& step, std::size_t index) {
  if (index >= step.raw()->model_state_count) {
    throw Error("state " + std::to_string(index) + " of the model: the manifest declares " +
                std::to_string(step.raw()->model_state_count) + ", numbered from 0.");
  }
  const capstan_tensor tensor = step.raw()->model_state[index];
  const Values values = values_of(tensor);
  if (values.dtype != Dtype::kFloat32 || on_cpu(tensor)) {
    throw Error("state " + std::to_string(index) + " of the model: must be float32 in the memory of a device.");
  }
  return static_cast<float*>(values.data);
}

}  // namespace capstan::sdk

#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <utility>

#include "device/counts.hpp"
#include "device/device.hpp"
#include "device/order.hpp"
#include "torch/access.hpp"
#include "torch/backend.hpp"

namespace capstan::emulated {

/// Whether the order allows an operator `name` that reads these tensors of the device. Returns their device.
inline int launch_reading(const char* name, std::initializer_list<at::Tensor> inputs) {
  int device = current_device();
  std::vector<Access> accesses;
  for (const at::Tensor& input : inputs) {
    if (!is_ours(input)) continue;
    device = input.device().index();
    add_access(accesses, input, false);
  }
  launch(name, device, current_stream(device), accesses);
  note_operator(name);
  return device;
}

/// The CPU's tensor of an input, which may be undefined.
inline at::Tensor view_of(const at::Tensor& input) { return is_ours(input) ? cpu_view(input) : input; }

/// A result on the device; undefined where `cpu` is.
inline at::Tensor given(const at::Tensor& cpu, int device) { return cpu.defined() ? to_device(cpu, device) : cpu; }

}  // namespace capstan::emulated

#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

namespace capstan::emulated {

/// Runs an operator by the CPU's kernel on the bytes of the device's tensors, and checks the accesses' order.
void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace capstan::emulated

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

#include <optional>

namespace capstan {

/// input weight^T + bias for the few rows of a step of generation, where reading the weight bounds the time: the
/// operator capstan::few_rows_linear. On the CPU sums are made in float32, each in one order, so that a row's result
/// does not depend on the rows beside it; at::linear rounds otherwise, and computes wherever gradients are on, autocast
/// is, the rows are more than 64, or the device is another one.
///
/// input: [..., width], weight: [outputs, width], bias: [outputs] or undefined, of one floating-point dtype. The result
/// is [..., outputs] in it. Throws c10::Error as at::linear does. Any thread.
inline at::Tensor few_rows_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {}) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  const std::optional<at::Tensor> given = bias.defined() ? std::optional(bias) : std::nullopt;
  const auto find = [] { return c10::Dispatcher::singleton().findSchema({"capstan::few_rows_linear", ""}); };
  static const auto found = find();
  if (!found || at::GradMode::is_enabled()) return at::linear(input, weight, given);  // no engine in this process
  static const auto call = found->typed<Signature>();
  return call.call(input, weight, given);
}

}  // namespace capstan

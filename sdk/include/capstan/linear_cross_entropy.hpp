#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace capstan {

/// How linear_cross_entropy() makes logits and a loss.
struct LinearCrossEntropyOptions {
  at::Tensor bias;                   // [vocabulary], of weight's dtype; undefined: none
  std::optional<double> softcap;     // above 0: logits become softcap * tanh(logits / softcap), after the division
  double divisor = 1;                // logits are divided by it
  std::int64_t ignore_index = -100;  // a label that is not counted
};

namespace sdk {

/// Products of hidden states and a head's weight as logits: divided, and bounded.
inline at::Tensor scaled_logits(at::Tensor logits, const LinearCrossEntropyOptions& options) {
  if (options.divisor != 1) logits = logits.div(options.divisor);
  if (options.softcap) logits = logits.div(*options.softcap).tanh().mul(*options.softcap);
  return logits;
}

/// Logits [..., vocabulary] of hidden [..., width] by weight [vocabulary, width], in their dtype.
inline at::Tensor head_logits(const at::Tensor& hidden, const at::Tensor& weight,
                              const LinearCrossEntropyOptions& options = {}) {
  const auto bias = options.bias.defined() ? std::optional(options.bias) : std::nullopt;
  return scaled_logits(at::linear(hidden, weight, bias), options);
}

/// The loss of all logits at once.
inline at::Tensor plain_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                             const at::Tensor& labels, const LinearCrossEntropyOptions& options) {
  const at::Tensor logits = head_logits(hidden, weight, options);
  const at::ScalarType dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}).to(dtype), labels.reshape(-1), {},
                                at::Reduction::Mean, options.ignore_index);
}

}  // namespace sdk

/// The mean cross-entropy of a language model's head, -log softmax(hidden weight^T + bias)[label] over the labels that
/// count, without all logits in memory: where they are many, a chunk of rows at a time, whose gradients are made at
/// once (capstan.run.loss_chunk in the configuration says how much memory a chunk takes). NaN where no label counts.
///
/// hidden: [..., width], weight: [vocabulary, width], of one floating-point dtype. labels: int64, of hidden's leading
/// dimensions. The result is a float32 scalar, a float64 one of float64. Gradients go to hidden, weight and bias; a
/// weight that does not require one costs none. Second derivatives exist, and take the memory of all logits. Throws
/// c10::Error for tensors that do not fit, and on the CPU for a label that is outside of the vocabulary. Any thread.
inline at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                       const LinearCrossEntropyOptions& options = {}) {
  const auto op = c10::Dispatcher::singleton().findSchema({"capstan::linear_cross_entropy", ""});
  if (!op) return sdk::plain_linear_cross_entropy(hidden, weight, labels, options);  // no engine in this process
  std::vector<c10::IValue> stack = {hidden,
                                    weight,
                                    options.bias.defined() ? c10::IValue(options.bias) : c10::IValue(),
                                    labels,
                                    options.softcap ? c10::IValue(*options.softcap) : c10::IValue(),
                                    options.divisor,
                                    options.ignore_index};
  op->callBoxed(stack);
  return stack.front().toTensor();
}

}  // namespace capstan

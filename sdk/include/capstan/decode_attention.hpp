#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rms_norm.h>

#include <cstdint>
#include <optional>
#include <vector>

/// A step of generation in few operators: what each of LibTorch's costs beside its work is a third of a small model's
/// step.
namespace capstan {

/// One new token of each row, for decode_attention().
struct DecodeAttention {
  at::Tensor queries;       // float32 [rows, heads, width], before they are turned
  at::Tensor keys, values;  // of the new tokens, float32 [rows, kv_heads, width]; kv_heads divides heads
  at::Tensor cos, sin;      // of a rotary embedding by halves, float32 [rows, dimensions that turn]; undefined: none
  at::Tensor cached_keys, cached_values;  // float32 [sequences, kv_heads, capacity, width], contiguous
  std::vector<std::int64_t> sequences;    // of the cache, one a row
  std::vector<std::int64_t> lengths;      // tokens of these sequences in the cache
  double scale = 1;                       // of the scores
  std::int64_t window = 0;                // keys that a token sees, its own among them; 0: all
};

/// Whether decode_attention() computes it: an engine is in this process, gradients are off, and all tensors are float32
/// on the CPU.
inline bool serves_decode_attention(const at::Tensor& hidden) {
  static const bool there = c10::Dispatcher::singleton().findSchema({"capstan::decode_attention", ""}).has_value();
  return there && !at::GradMode::is_enabled() && hidden.is_cpu() && hidden.scalar_type() == at::kFloat;
}

/// Puts the turned keys and the values of the new tokens behind those of their sequences, and returns softmax(scale *
/// queries keys^T) values over each sequence: [rows, heads, width]. A row's result does not depend on other rows.
/// Throws c10::Error for tensors that do not fit, or that serves_decode_attention() is false of. Any thread.
inline at::Tensor decode_attention(const DecodeAttention& step) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, at::Tensor&,
                               at::Tensor&, at::IntArrayRef, at::IntArrayRef, double, std::int64_t);
  static const auto call =
      c10::Dispatcher::singleton().findSchemaOrThrow("capstan::decode_attention", "").typed<Signature>();
  const auto given = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
  at::Tensor keys = step.cached_keys, values = step.cached_values;
  return call.call(step.queries, step.keys, step.values, given(step.cos), given(step.sin), keys, values, step.sequences,
                   step.lengths, step.scale, step.window);
}

/// at::rms_norm(x, {width}, {}, eps) * weight in one operator where gradients are off and all is float32 on the CPU;
/// rounds otherwise than LibTorch's. A row's result does not depend on other rows.
inline at::Tensor few_rows_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, double);
  static const auto found = c10::Dispatcher::singleton().findSchema({"capstan::few_rows_rms_norm", ""});
  if (!found || at::GradMode::is_enabled()) return at::rms_norm(x, {x.size(-1)}, {}, eps).mul(weight);
  static const auto call = found->typed<Signature>();
  return call.call(x, weight, eps);
}

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>

#include <limits>
#include <optional>
#include <vector>

namespace capstan {

/// How a mask acts on the scores: it is added to them, or scores are left out where it is 0 (DeepSpeed's "mul").
enum class MaskMode { kAdd, kMultiply };

struct AttentionOptions {
  at::Tensor key_padding_mask;  // [batch, tokens]; a bool one leaves keys out where it is false
  MaskMode key_padding_mask_mode = MaskMode::kAdd;
  at::Tensor
      attn_mask;  // [tokens, tokens], or with heads and batch before; a bool one leaves scores out where it is false
  MaskMode attn_mask_mode = MaskMode::kMultiply;
  at::Tensor relative_position;  // [tokens, tokens], or with heads and batch before; added to the scaled scores
  std::optional<double> scale;   // default: 1 / sqrt(d)
  bool causal = false;           // no token attends to a later one
};

namespace sdk {

/// What joins the scores of `options`, as one tensor of q's dtype; undefined where nothing does.
inline at::Tensor joined_terms(const at::Tensor& q, const AttentionOptions& options) {
  at::Tensor terms;
  const auto join = [&](at::Tensor term, MaskMode mode) {
    if (!term.defined()) return;
    if (mode == MaskMode::kMultiply || term.scalar_type() == at::kBool) {
      const at::Tensor none = at::full({}, -std::numeric_limits<double>::infinity(), q.options());
      term = at::where(term.to(at::kBool), at::full({}, 0.0, q.options()), none);
    }
    terms = terms.defined() ? terms.add(term.to(q.scalar_type())) : term.to(q.scalar_type());
  };
  at::Tensor padding = options.key_padding_mask;
  if (padding.defined()) padding = padding.unsqueeze(-2).unsqueeze(-2);
  join(padding, options.key_padding_mask_mode);
  join(options.attn_mask, options.attn_mask_mode);
  join(options.relative_position, MaskMode::kAdd);
  if (terms.defined() && options.causal) {
    join(at::ones({q.size(-2), q.size(-2)}, q.options().dtype(at::kBool)).tril(), MaskMode::kMultiply);
  }
  return terms;
}

/// softmax(scale q k^T + terms) v over all blocks, by LibTorch's operator.
inline at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionOptions& options) {
  const at::Tensor terms = joined_terms(q, options);
  return at::scaled_dot_product_attention(q, k, v, terms.defined() ? std::optional(terms) : std::nullopt, 0.0,
                                          options.causal && !terms.defined(), options.scale);
}

}  // namespace sdk

/// Self-attention, softmax(scale q k^T + masks) v, for models that compute it by hand: in an engine whose configuration
/// has a section sparse_attention over the blocks of its layout, anywhere else over all of them. Models that call
/// at::scaled_dot_product_attention need no change.
///
/// q, k, v: [batch, heads, tokens, d], of one floating-point dtype; the result is as q, with the d of v. Gradients go
/// to q, k, v, masks that are added and relative_position.
inline at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionOptions& options = {}) {
  const auto op = c10::Dispatcher::singleton().findSchema({"capstan::attention", ""});
  if (!op) return sdk::dense_attention(q, k, v, options);  // no engine in this process
  const auto given = [](const at::Tensor& tensor) { return tensor.defined() ? c10::IValue(tensor) : c10::IValue(); };
  std::vector<c10::IValue> stack = {q,
                                    k,
                                    v,
                                    given(options.key_padding_mask),
                                    options.key_padding_mask_mode == MaskMode::kMultiply,
                                    given(options.attn_mask),
                                    options.attn_mask_mode == MaskMode::kMultiply,
                                    given(options.relative_position),
                                    options.scale ? c10::IValue(*options.scale) : c10::IValue(),
                                    options.causal};
  op->callBoxed(stack);
  return stack.front().toTensor();
}

}  // namespace capstan

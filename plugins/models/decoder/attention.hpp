#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "../kv_cache.hpp"
#include "../packed_rows.hpp"
#include "norm.hpp"
#include "rotary.hpp"
#include "shape.hpp"

namespace capstan::models {

/// x W^T + b, rounded once: forward() of torch::nn::Linear multiplies, rounds to 16 bits, and then adds.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x);

/// The inputs of a layer's attention beside its hidden states.
struct AttentionInputs {
  RotaryTable rotary;
  at::Tensor mask;  // bool [samples or 1, 1, queries, keys], true where a query sees a key; undefined: causal
  const PackedRows* packed = nullptr;  // null: a row is a document
  std::vector<at::Tensor> masks = {};  // of the documents of `packed`, in the place of `mask`
};

/// self_attn: causal attention with grouped heads of keys and values (Ainslie et al. 2023, arXiv 2305.13245), by the
/// operators that transformers takes in the same order, so that results are its own bit for bit.
class DecoderAttention : public torch::nn::Module {
 public:
  DecoderAttention(const DecoderShape& shape, std::size_t layer);
  /// `hidden`: [samples, tokens, hidden_size], and so the result. With a cache the tokens attend to those in it, too.
  at::Tensor forward(const at::Tensor& hidden, const AttentionInputs& inputs, KeyValueCache* cache = nullptr);

 private:
  struct Heads {
    at::Tensor queries, keys, values;  // [samples, heads or kv_heads, tokens, head_dim]
  };
  Heads project(const at::Tensor& hidden);
  /// [samples, heads, tokens, head_dim]
  at::Tensor mixed(const Heads& heads, const at::Tensor& mask) const;
  /// As one row: [1, heads, samples * tokens, head_dim].
  at::Tensor mixed_by_documents(const Heads& heads, const AttentionInputs& inputs) const;
  at::Tensor attend(const Heads& heads, const at::Tensor& mask) const;
  at::Tensor attend_explicitly(const Heads& heads, const at::Tensor& mask) const;

  const DecoderShape shape_;
  std::size_t layer_;
  bool rotary_;
  torch::nn::Linear q_proj_ = nullptr, k_proj_ = nullptr, v_proj_ = nullptr;  // null: fused
  torch::nn::Linear qkv_proj_ = nullptr;                                      // null: three
  torch::nn::Linear o_proj_;
  std::shared_ptr<DecoderNorm> q_norm_, k_norm_;  // null: none
};

}  // namespace capstan::models

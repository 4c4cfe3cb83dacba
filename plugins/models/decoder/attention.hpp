#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <memory>

#include "norm.hpp"
#include "rotary.hpp"
#include "shape.hpp"

namespace capstan::models {

/// x W^T + b, rounded once: forward() of torch::nn::Linear multiplies, rounds to 16 bits, and then adds.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x);

/// What the attention of a layer takes beside its hidden states.
struct AttentionInputs {
  RotaryTable rotary;
  at::Tensor mask;  // bool [samples or 1, 1, queries, keys], true where a query sees a key; undefined: causal
};

/// Keys and values of the tokens that a layer has seen: [sequences, kv_heads, capacity, head_dim], undefined until the
/// first ones come.
struct LayerCache {
  at::Tensor keys, values;
};

/// The cache that a layer adds its tokens to.
struct CacheSlot {
  LayerCache* cache;
  std::int64_t past, capacity;  // tokens that it holds, and may hold
};

/// self_attn: causal attention with grouped heads of keys and values (Ainslie et al. 2023, arXiv 2305.13245), by the
/// operators that transformers takes in the same order, so that results are its own bit for bit.
class DecoderAttention : public torch::nn::Module {
 public:
  DecoderAttention(const DecoderShape& shape, std::size_t layer);
  /// `hidden`: [samples, tokens, hidden_size], and so the result. With a cache the tokens attend to those in it, too.
  at::Tensor forward(const at::Tensor& hidden, const AttentionInputs& inputs, const CacheSlot* slot = nullptr);

 private:
  struct Heads {
    at::Tensor queries, keys, values;  // [samples, heads or kv_heads, tokens, head_dim]
  };
  Heads project(const at::Tensor& hidden);
  at::Tensor attend(const Heads& heads, const at::Tensor& mask) const;
  at::Tensor attend_explicitly(const Heads& heads, const at::Tensor& mask) const;

  const DecoderShape shape_;
  bool rotary_;
  torch::nn::Linear q_proj_ = nullptr, k_proj_ = nullptr, v_proj_ = nullptr;  // null: fused
  torch::nn::Linear qkv_proj_ = nullptr;                                      // null: three
  torch::nn::Linear o_proj_;
  std::shared_ptr<DecoderNorm> q_norm_, k_norm_;  // null: none
};

}  // namespace capstan::models

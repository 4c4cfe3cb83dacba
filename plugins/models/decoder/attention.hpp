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

/// Rows of a product: those of samples, or the few of a step of generation, which few_rows_linear() serves.
enum class Rows { kMany, kFew };

/// x W^T + b, rounded once: forward() of torch::nn::Linear multiplies, rounds to 16 bits, and then adds.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x, Rows rows = Rows::kMany);

/// The inputs of a layer's attention beside its hidden states.
struct AttentionInputs {
  RotaryTable rotary;
  at::Tensor mask;  // bool [samples or 1, 1, queries, keys], true where a query sees a key; undefined: causal
  const PackedRows* packed = nullptr;  // null: a row is a document
  std::vector<at::Tensor> masks = {};  // of the documents of `packed`, in the place of `mask`
};

/// The inputs of a layer's attention beside the hidden states where sequences are continued.
struct DecodeInputs {
  RotaryTable rotary;
  const DecodedTokens& tokens;
  std::int64_t window = 0;  // keys that a token sees; 0: all
  std::vector<at::Tensor>
      masks;  // one a row, bool [1, 1, tokens, keys]; undefined: the tokens see all keys before them
  Rows rows() const { return tokens.are_single() ? Rows::kFew : Rows::kMany; }
};

/// self_attn: causal attention with grouped heads of keys and values (Ainslie et al. 2023, arXiv 2305.13245), by the
/// operators that transformers takes in the same order, so that results are its own bit for bit.
class DecoderAttention : public torch::nn::Module {
 public:
  DecoderAttention(const DecoderShape& shape, std::size_t layer);
  /// `hidden`: [samples, tokens, hidden_size], and so the result.
  at::Tensor forward(const at::Tensor& hidden, const AttentionInputs& inputs);
  /// Of tokens that attend to those of the cache, too, and go behind them. `hidden`: [rows, tokens, hidden_size].
  at::Tensor decode(const at::Tensor& hidden, const DecodeInputs& inputs, KeyValueCache& cache);

 private:
  struct Heads {
    at::Tensor queries, keys, values;  // [samples, heads or kv_heads, tokens, head_dim]
  };
  Heads project(const at::Tensor& hidden, Rows rows = Rows::kMany);
  at::Tensor mixed_of_step(const Heads& heads, const DecodeInputs& inputs, KeyValueCache& cache) const;
  void turn(Heads& heads, const RotaryTable& rotary) const;
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

#pragma once

#include <memory>

#include "attention.hpp"

namespace capstan::models {

/// mlp: down(activation(gate x) * up x), a gated linear unit (Shazeer 2020, arXiv 2002.05202).
class DecoderMlp : public torch::nn::Module {
 public:
  explicit DecoderMlp(const DecoderShape& shape);
  at::Tensor forward(const at::Tensor& x, Rows rows = Rows::kMany);

 private:
  at::Tensor activated(const at::Tensor& x, Rows rows) const;

  Activation activation_;
  torch::nn::Linear gate_proj_ = nullptr, up_proj_ = nullptr;  // null: fused
  torch::nn::Linear gate_up_proj_ = nullptr;                   // null: two
  torch::nn::Linear down_proj_;
};

/// A layer: attention and MLP, each added to the hidden states, with norms where the shape has them.
class DecoderBlock : public torch::nn::Module {
 public:
  DecoderBlock(const DecoderShape& shape, std::size_t layer);
  at::Tensor forward(const at::Tensor& hidden, const AttentionInputs& inputs);
  at::Tensor decode(const at::Tensor& hidden, const DecodeInputs& inputs, KeyValueCache& cache);

 private:
  template <class Attend>
  at::Tensor with_attention(const at::Tensor& hidden, Rows rows, Attend attend);

  double residual_multiplier_;
  std::shared_ptr<DecoderAttention> self_attn_;
  std::shared_ptr<DecoderMlp> mlp_;
  std::shared_ptr<DecoderNorm> before_attention_, after_attention_, before_mlp_, after_mlp_;  // null: none
};

}  // namespace capstan::models

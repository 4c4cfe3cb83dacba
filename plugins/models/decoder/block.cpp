#include "block.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "../by_rows.hpp"

namespace capstan::models {
namespace {

torch::nn::Linear mlp_layer(std::int64_t in, std::int64_t out, const DecoderShape& shape) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(shape.mlp_bias));
}

at::Tensor normed(const std::shared_ptr<DecoderNorm>& norm, const at::Tensor& x, Rows rows) {
  if (!norm) return x;
  return rows == Rows::kFew ? norm->decode(x) : norm->forward(x);
}

}  // namespace

DecoderMlp::DecoderMlp(const DecoderShape& shape) : activation_(shape.activation), down_proj_(nullptr) {
  const std::int64_t hidden = shape.hidden_size, between = shape.intermediate_size;
  if (shape.fused_projections) {
    gate_up_proj_ = register_module("gate_up_proj", mlp_layer(hidden, 2 * between, shape));
  } else {
    gate_proj_ = register_module("gate_proj", mlp_layer(hidden, between, shape));
    up_proj_ = register_module("up_proj", mlp_layer(hidden, between, shape));
  }
  down_proj_ = register_module("down_proj", mlp_layer(between, hidden, shape));
}

at::Tensor DecoderMlp::activated(const at::Tensor& x, Rows rows) const {
  if (rows == Rows::kFew) {
    return by_rows(x, [this](const at::Tensor& row) { return activated(row, Rows::kMany); });
  }
  if (activation_ == Activation::kSilu) return at::silu(x);
  return at::gelu(x, activation_ == Activation::kGelu ? "none" : "tanh");
}

at::Tensor DecoderMlp::forward(const at::Tensor& x, Rows rows) {
  if (gate_up_proj_) {
    const auto parts = linear(gate_up_proj_, x, rows).chunk(2, -1);
    return linear(down_proj_, parts[1] * activated(parts[0], rows), rows);
  }
  const at::Tensor gate = activated(linear(gate_proj_, x, rows), rows);
  return linear(down_proj_, gate * linear(up_proj_, x, rows), rows);
}

DecoderBlock::DecoderBlock(const DecoderShape& shape, std::size_t layer)
    : residual_multiplier_(shape.residual_multiplier),
      self_attn_(register_module("self_attn", std::make_shared<DecoderAttention>(shape, layer))),
      mlp_(register_module("mlp", std::make_shared<DecoderMlp>(shape))) {
  const auto norm = [&](const char* name) {
    return register_module(name, std::make_shared<DecoderNorm>(shape.hidden_size, shape.norm, shape.norm_eps));
  };
  // A model with norms before alone calls the one before its MLP "post_attention_layernorm".
  const bool before = shape.norm_place != NormPlace::kAfter, after = shape.norm_place != NormPlace::kBefore;
  if (before) before_attention_ = norm("input_layernorm");
  (after ? after_attention_ : before_mlp_) = norm("post_attention_layernorm");
  if (before && after) before_mlp_ = norm("pre_feedforward_layernorm");
  if (after) after_mlp_ = norm("post_feedforward_layernorm");
}

template <class Attend>
at::Tensor DecoderBlock::with_attention(const at::Tensor& hidden, Rows rows, Attend attend) {
  const auto scaled = [&](const at::Tensor& x) { return residual_multiplier_ == 1 ? x : x * residual_multiplier_; };
  const at::Tensor mixed = normed(after_attention_, attend(normed(before_attention_, hidden, rows)), rows);
  const at::Tensor attended = hidden + scaled(mixed);
  return attended + scaled(normed(after_mlp_, mlp_->forward(normed(before_mlp_, attended, rows), rows), rows));
}

at::Tensor DecoderBlock::forward(const at::Tensor& hidden, const AttentionInputs& inputs) {
  return with_attention(hidden, Rows::kMany, [&](const at::Tensor& x) { return self_attn_->forward(x, inputs); });
}

at::Tensor DecoderBlock::decode(const at::Tensor& hidden, const DecodeInputs& inputs, KeyValueCache& cache) {
  return with_attention(hidden, inputs.rows(),
                        [&](const at::Tensor& x) { return self_attn_->decode(x, inputs, cache); });
}

}  // namespace capstan::models

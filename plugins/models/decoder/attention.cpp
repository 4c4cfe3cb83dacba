#include "attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include <limits>
#include <optional>

namespace capstan::models {
namespace {

// LibTorch's fused kernels take no wider heads; transformers repeats keys and values there.
constexpr std::int64_t kWidestGroupedHead = 256;

torch::nn::Linear projection(std::int64_t in, std::int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

/// Each head of keys or values as often as heads of queries share it.
at::Tensor repeated(const at::Tensor& heads, std::int64_t times) {
  if (times == 1) return heads;
  const auto samples = heads.size(0), count = heads.size(1), tokens = heads.size(2), width = heads.size(3);
  return heads.unsqueeze(2)
      .expand({samples, count, times, tokens, width})
      .reshape({samples, count * times, tokens, width});
}

}  // namespace

at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias.defined() ? std::optional(layer->bias) : std::nullopt);
}

DecoderAttention::DecoderAttention(const DecoderShape& shape, std::size_t layer)
    : shape_(shape), layer_(layer), rotary_(shape.rotary[layer]), o_proj_(nullptr) {
  const std::int64_t queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
  if (shape.fused_projections) {
    qkv_proj_ = register_module("qkv_proj", projection(shape.hidden_size, queries + 2 * keys, shape.qkv_bias));
  } else {
    q_proj_ = register_module("q_proj", projection(shape.hidden_size, queries, shape.qkv_bias));
    k_proj_ = register_module("k_proj", projection(shape.hidden_size, keys, shape.qkv_bias));
    v_proj_ = register_module("v_proj", projection(shape.hidden_size, keys, shape.qkv_bias));
  }
  o_proj_ = register_module("o_proj", projection(queries, shape.hidden_size, shape.output_bias));
  if (shape.head_norm == HeadNorm::kNone) return;
  const bool each = shape.head_norm == HeadNorm::kEachHead;
  const auto norm = [&](const char* name, std::int64_t width) {
    return register_module(name,
                           std::make_shared<DecoderNorm>(each ? shape.head_dim : width, shape.norm, shape.norm_eps));
  };
  q_norm_ = norm("q_norm", queries);
  k_norm_ = norm("k_norm", keys);
}

DecoderAttention::Heads DecoderAttention::project(const at::Tensor& hidden) {
  Heads heads;
  if (shape_.fused_projections) {
    const std::int64_t keys = shape_.kv_heads * shape_.head_dim;
    const auto parts = linear(qkv_proj_, hidden).split_with_sizes({shape_.heads * shape_.head_dim, keys, keys}, -1);
    heads = {parts[0], parts[1], parts[2]};
  } else {
    heads = {linear(q_proj_, hidden), linear(k_proj_, hidden), linear(v_proj_, hidden)};
  }
  if (shape_.head_norm == HeadNorm::kAllHeads) {
    heads.queries = q_norm_->forward(heads.queries);
    heads.keys = k_norm_->forward(heads.keys);
  }
  const bool each = shape_.head_norm == HeadNorm::kEachHead;
  const auto split = [&](at::Tensor& part, std::int64_t count, const DecoderNorm* norm) {
    if (shape_.clip_qkv > 0) part = part.clamp(-shape_.clip_qkv, shape_.clip_qkv);
    part = part.view({hidden.size(0), hidden.size(1), count, shape_.head_dim});
    if (norm != nullptr) part = norm->forward(part);
    part = part.transpose(1, 2);
  };
  split(heads.queries, shape_.heads, each ? q_norm_.get() : nullptr);
  split(heads.keys, shape_.kv_heads, each ? k_norm_.get() : nullptr);
  split(heads.values, shape_.kv_heads, nullptr);
  return heads;
}

at::Tensor DecoderAttention::attend(const Heads& heads, const at::Tensor& mask) const {
  const std::int64_t group = shape_.heads / shape_.kv_heads;
  const bool grouped = group > 1 && !mask.defined() && shape_.head_dim <= kWidestGroupedHead;
  const std::int64_t times = grouped ? 1 : group;
  const bool causal = !mask.defined() && heads.queries.size(2) > 1;
  return at::scaled_dot_product_attention(heads.queries, repeated(heads.keys, times), repeated(heads.values, times),
                                          mask.defined() ? std::optional(mask) : std::nullopt, 0.0, causal,
                                          shape_.attention_scale, grouped);
}

at::Tensor DecoderAttention::attend_explicitly(const Heads& heads, const at::Tensor& mask) const {
  const std::int64_t group = shape_.heads / shape_.kv_heads;
  const at::Tensor keys = repeated(heads.keys, group), values = repeated(heads.values, group);
  at::Tensor scores = at::matmul(heads.queries, keys.transpose(2, 3)) * shape_.attention_scale;
  if (shape_.attention_softcap > 0) {
    scores = at::tanh(scores / shape_.attention_softcap) * shape_.attention_softcap;
  }
  scores = scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1, at::kFloat).to(heads.queries.scalar_type()), values);
}

at::Tensor DecoderAttention::mixed(const Heads& heads, const at::Tensor& mask) const {
  return shape_.explicit_attention ? attend_explicitly(heads, mask) : attend(heads, mask);
}

at::Tensor DecoderAttention::mixed_by_documents(const Heads& heads, const AttentionInputs& inputs) const {
  const PackedRows& rows = *inputs.packed;
  const auto queries = rows.split(heads.queries), keys = rows.split(heads.keys), values = rows.split(heads.values);
  std::vector<at::Tensor> documents;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    documents.push_back(mixed({queries[i], keys[i], values[i]}, inputs.masks[i]));
  }
  return PackedRows::join(documents);
}

at::Tensor DecoderAttention::forward(const at::Tensor& hidden, const AttentionInputs& inputs, KeyValueCache* cache) {
  Heads heads = project(hidden);
  if (rotary_) {
    const auto dtype = heads.queries.scalar_type();
    heads.queries = turned(heads.queries, inputs.rotary);
    heads.keys = turned(heads.keys, inputs.rotary);
    if (shape_.rotary_in_fp32) {
      heads.queries = heads.queries.to(dtype);
      heads.keys = heads.keys.to(dtype);
    }
  }
  if (cache != nullptr) cache->extend(layer_, heads.keys, heads.values);
  const at::Tensor values = inputs.packed ? mixed_by_documents(heads, inputs) : mixed(heads, inputs.mask);
  return linear(o_proj_, values.transpose(1, 2).reshape({hidden.size(0), hidden.size(1), -1}));
}

}  // namespace capstan::models

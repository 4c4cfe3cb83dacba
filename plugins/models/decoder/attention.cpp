#include "attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include <limits>
#include <optional>

#include "capstan/decode_attention.hpp"
#include "capstan/few_rows_linear.hpp"

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

at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x, Rows rows) {
  if (rows == Rows::kFew) return few_rows_linear(x, layer->weight, layer->bias);
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

DecoderAttention::Heads DecoderAttention::project(const at::Tensor& hidden, Rows rows) {
  Heads heads;
  if (shape_.fused_projections) {
    const std::int64_t keys = shape_.kv_heads * shape_.head_dim;
    const auto parts =
        linear(qkv_proj_, hidden, rows).split_with_sizes({shape_.heads * shape_.head_dim, keys, keys}, -1);
    heads = {parts[0], parts[1], parts[2]};
  } else {
    heads = {linear(q_proj_, hidden, rows), linear(k_proj_, hidden, rows), linear(v_proj_, hidden, rows)};
  }
  const auto normed = [rows](const DecoderNorm& norm, const at::Tensor& x) {
    return rows == Rows::kFew ? norm.decode(x) : norm.forward(x);
  };
  if (shape_.head_norm == HeadNorm::kAllHeads) {
    heads.queries = normed(*q_norm_, heads.queries);
    heads.keys = normed(*k_norm_, heads.keys);
  }
  const bool each = shape_.head_norm == HeadNorm::kEachHead;
  const auto split = [&](at::Tensor& part, std::int64_t count, const DecoderNorm* norm) {
    if (shape_.clip_qkv > 0) part = part.clamp(-shape_.clip_qkv, shape_.clip_qkv);
    part = part.view({hidden.size(0), hidden.size(1), count, shape_.head_dim});
    if (norm != nullptr) part = normed(*norm, part);
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

void DecoderAttention::turn(Heads& heads, const RotaryTable& rotary) const {
  if (!rotary_) return;
  const auto dtype = heads.queries.scalar_type();
  heads.queries = turned(heads.queries, rotary);
  heads.keys = turned(heads.keys, rotary);
  if (!shape_.rotary_in_fp32) return;
  heads.queries = heads.queries.to(dtype);
  heads.keys = heads.keys.to(dtype);
}

at::Tensor DecoderAttention::forward(const at::Tensor& hidden, const AttentionInputs& inputs) {
  Heads heads = project(hidden);
  turn(heads, inputs.rotary);
  const at::Tensor values = inputs.packed ? mixed_by_documents(heads, inputs) : mixed(heads, inputs.mask);
  return linear(o_proj_, values.transpose(1, 2).reshape({hidden.size(0), hidden.size(1), -1}));
}

/// Of one token of each row, by the operator of such steps.
at::Tensor DecoderAttention::mixed_of_step(const Heads& heads, const DecodeInputs& inputs, KeyValueCache& cache) const {
  const auto room = cache.room(layer_, heads.keys);
  DecodeAttention step{.queries = heads.queries.squeeze(2).contiguous(),
                       .keys = heads.keys.squeeze(2).contiguous(),
                       .values = heads.values.squeeze(2).contiguous(),
                       .cached_keys = room.keys,
                       .cached_values = room.values,
                       .sequences = inputs.tokens.rows,
                       .lengths = cache.lengths(inputs.tokens),
                       .scale = shape_.attention_scale,
                       .window = inputs.window};
  if (rotary_) {
    step.cos = inputs.rotary.cos.squeeze(1).squeeze(1);
    step.sin = inputs.rotary.sin.squeeze(1).squeeze(1);
  }
  return decode_attention(step);
}

at::Tensor DecoderAttention::decode(const at::Tensor& hidden, const DecodeInputs& inputs, KeyValueCache& cache) {
  Heads heads = project(hidden, inputs.rows());
  if (inputs.tokens.are_single() && !shape_.explicit_attention && serves_decode_attention(heads.queries)) {
    const at::Tensor values = mixed_of_step(heads, inputs, cache);
    return linear(o_proj_, values.reshape({hidden.size(0), 1, -1}), Rows::kFew);
  }
  turn(heads, inputs.rotary);
  const std::vector<std::int64_t>& rows = inputs.tokens.rows;
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto of_row = [&](const at::Tensor& all) {
      return rows.size() == 1 ? all : all.narrow(0, static_cast<std::int64_t>(i), 1);
    };
    const auto known = cache.extend(layer_, rows[i], of_row(heads.keys), of_row(heads.values));
    values.push_back(mixed({of_row(heads.queries), known.keys, known.values}, inputs.masks[i]));
  }
  const at::Tensor all = values.size() == 1 ? values.front() : at::cat(values);
  return linear(o_proj_, all.transpose(1, 2).reshape({hidden.size(0), hidden.size(1), -1}), inputs.rows());
}

}  // namespace capstan::models

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "capstan/sdk/model.hpp"

namespace capstan::models {

struct GptShape {
  std::int64_t layers, d, heads, seq, vocab;
  bool tied_head = false;  // the head's weight is the token embedding's

  /// The shape that `size` names, with the parameters that are given in its place. Throws sdk::Error.
  static GptShape from(const sdk::Params& params);
};

/// attn.qkv, attn.proj: causal scaled dot-product attention; rows of qkv are [q | k | v], each with its heads in turn.
class GptAttention : public torch::nn::Module {
 public:
  explicit GptAttention(const GptShape& shape);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  std::int64_t heads_;
  torch::nn::Linear qkv_, proj_;
};

/// mlp.fc, mlp.proj: GELU in its tanh form between.
class GptMlp : public torch::nn::Module {
 public:
  explicit GptMlp(const GptShape& shape);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  torch::nn::Linear fc_, proj_;
};

/// h += attn(ln1(h)); h += mlp(ln2(h)).
class GptBlock : public torch::nn::Module {
 public:
  explicit GptBlock(const GptShape& shape);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  torch::nn::LayerNorm ln1_;
  std::shared_ptr<GptAttention> attn_;
  torch::nn::LayerNorm ln2_;
  std::shared_ptr<GptMlp> mlp_;
};

/// GPT with pre-LayerNorm, learned positions, no dropout, and a head without bias, tied or its own. Block i is the
/// layer "blocks.i". Runs in the dtype of its parameters; the loss is fp32.
class Gpt : public torch::nn::Module {
 public:
  Gpt(sdk::Host host, const sdk::Params& params);
  void check(const sdk::BatchView& batch) const;
  at::Tensor forward(const sdk::BatchView& batch);
  std::string describe() const;

 private:
  GptShape shape_;
  torch::nn::Embedding tok_emb_, pos_emb_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm ln_f_;
  torch::nn::Linear head_ = nullptr;  // null: tied
};

/// How transformers' GPT-2 calls and lays out the weights of a shape: the "hf" of describe(), as JSON.
std::string hf_names(const GptShape& shape);

/// GPT-2's initial weights, from torch's generator: normal with deviation 0.02, divided by sqrt(2 * layers) for the
/// projections that end a residual branch; biases 0, LayerNorm weights 1.
void initialize_normal(torch::nn::Module& model, std::int64_t layers);

/// Initial weights that any program can repeat: element i of parameter `name` is splitmix64 number i of the stream that
/// fnv1a64(name) xor seed * 0x9E3779B97F4A7C15 starts, mapped to [-bound, bound); bound is 0.04, divided by
/// sqrt(2 * layers) for the projections; biases 0, LayerNorm weights 1.
void initialize_formula(torch::nn::Module& model, std::int64_t layers, std::uint64_t seed);

}  // namespace capstan::models

#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <string>

#include "../kv_cache.hpp"
#include "../packed_rows.hpp"
#include "capstan/sdk/model.hpp"
#include "shape.hpp"

namespace capstan::models {

/// attn.qkv, attn.proj: causal scaled dot-product attention; rows of qkv are [q | k | v], each with its heads in turn.
class GptAttention : public torch::nn::Module {
 public:
  GptAttention(const GptShape& shape, std::size_t block);
  /// Tokens of `packed` rows attend to those of their document alone.
  at::Tensor forward(const at::Tensor& hidden, const PackedRows* packed = nullptr);
  /// Of tokens that attend to those of the cache, too, and go behind them. `hidden`: [rows, tokens, d].
  at::Tensor decode(const at::Tensor& hidden, const DecodedTokens& tokens, KeyValueCache& cache);

 private:
  std::size_t block_;
  std::int64_t heads_, head_size_;
  torch::nn::Linear qkv_, proj_;
};

/// mlp.fc, mlp.proj: GELU in its tanh form between.
class GptMlp : public torch::nn::Module {
 public:
  GptMlp(const GptShape& shape, std::size_t block);
  at::Tensor forward(const at::Tensor& hidden);
  at::Tensor decode(const at::Tensor& hidden, const DecodedTokens& tokens);

 private:
  torch::nn::Linear fc_, proj_;
};

/// h += attn(ln1(h)); h += mlp(ln2(h)).
class GptBlock : public torch::nn::Module {
 public:
  GptBlock(const GptShape& shape, std::size_t block);
  at::Tensor forward(const at::Tensor& hidden, const PackedRows* packed = nullptr);
  at::Tensor decode(const at::Tensor& hidden, const DecodedTokens& tokens, KeyValueCache& cache);

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
  /// "logits", [batch, time, vocabulary] in the dtype of the parameters.
  sdk::NamedOutputs outputs(const sdk::BatchView& batch);
  std::string describe() const;

  using Cache = KeyValueCache;
  /// `ids`: int64 [sequences, tokens], behind those of the cache, and -1 where a row has fewer. The result:
  /// [rows that have tokens, vocab].
  at::Tensor decode(const at::Tensor& ids, Cache& cache);

 private:
  /// The normalised hidden states that the head reads, [batch, time, d]. `inputs`: tokens of the batch.
  at::Tensor hidden_states(const sdk::BatchView& batch, const at::Tensor& inputs);
  at::Tensor packed_block(std::size_t i, const at::Tensor& hidden, const PackedRows& packed);
  const at::Tensor& head_weight() const { return shape_.tied_head ? tok_emb_->weight : head_->weight; }

  GptShape shape_;
  torch::nn::Embedding tok_emb_, pos_emb_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm ln_f_;
  torch::nn::Linear head_ = nullptr;  // null: tied
};

}  // namespace capstan::models

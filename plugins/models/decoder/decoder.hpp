#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "block.hpp"
#include "capstan/linear_cross_entropy.hpp"
#include "capstan/sdk/model.hpp"
#include "rotary.hpp"
#include "shape.hpp"

namespace capstan::models {

/// model: token embeddings, layers and the last norm. Layer i is the layer "model.layers.i".
class DecoderLayers : public torch::nn::Module {
 public:
  DecoderLayers(const ConfigJson& config, const DecoderShape& shape);
  /// `ids`: int64 [samples, tokens]. `packed`: their documents; null: each sample is one. The result: [samples, tokens,
  /// hidden_size], in the dtype of the parameters.
  at::Tensor forward(const at::Tensor& ids, const PackedRows* packed = nullptr);
  /// Computes tokens that follow those of the cache, which takes in their keys and values.
  at::Tensor decode(const DecodedTokens& tokens, KeyValueCache& cache);
  /// Whether a token's rotation depends on the length of its sequence.
  bool turns_by_length() const { return rotary_.depends_on_length(); }
  const at::Tensor& embedding() const { return embed_tokens_->weight; }

 private:
  at::Tensor embedded(const at::Tensor& ids) const;
  /// Where the tokens of a layer are in their sequences.
  struct Places {
    at::Tensor queries, keys;  // positions, int64 [samples or 1, tokens]
    std::int64_t span;         // at least the distance from the first key to the last query, plus one
    std::int64_t length;       // of the whole sequence
  };
  AttentionInputs inputs(bool windowed, const Places& places, at::ScalarType dtype) const;
  DecodeInputs decode_inputs(bool windowed, const DecodedTokens& tokens, const KeyValueCache& cache,
                             at::ScalarType dtype) const;
  AttentionInputs inputs(bool windowed, const PackedRows& rows, at::ScalarType dtype) const;
  const Rotary& rotary(bool windowed) const { return windowed && windowed_rotary_ ? *windowed_rotary_ : rotary_; }

  const DecoderShape shape_;
  Rotary rotary_;
  std::optional<Rotary> windowed_rotary_;
  torch::nn::Embedding embed_tokens_;
  torch::nn::ModuleList layers_;
  std::shared_ptr<DecoderNorm> norm_;
};

/// A decoder of Hugging Face's transformers, computed bit for bit as there, with transformers' names of modules and
/// weights. Runs in the dtype of its parameters; the loss is fp32. Parameter: `config`, the contents of config.json.
class Decoder : public torch::nn::Module {
 public:
  Decoder(sdk::Host host, const sdk::Params& params);
  void check(const sdk::BatchView& batch) const;
  at::Tensor forward(const sdk::BatchView& batch);
  /// "logits": [samples, tokens, vocab_size].
  sdk::NamedOutputs outputs(const sdk::BatchView& batch);
  std::string describe() const;

  using Cache = KeyValueCache;
  /// `ids`: int64 [sequences, tokens], the tokens behind those of the cache, and -1 where a row has fewer. The result:
  /// logits of the token that follows, [rows that have tokens, vocab_size].
  at::Tensor decode(const at::Tensor& ids, Cache& cache);

 private:
  const at::Tensor& head_weight() const;
  LinearCrossEntropyOptions head() const;
  /// The last hidden states of tokens of a batch.
  at::Tensor hidden_states(const sdk::BatchView& batch, const at::Tensor& ids);
  /// Of the last hidden states, [samples, tokens, hidden_size].
  at::Tensor logits_of(const at::Tensor& hidden) const;
  /// The initial weights of transformers: normal with deviation initializer_range; biases 0, norms the identity.
  void initialize();

  const DecoderShape shape_;
  const std::string config_;  // as JSON, with the members that this plugin does not read
  std::shared_ptr<DecoderLayers> model_;
  torch::nn::Linear lm_head_ = nullptr;  // null: tied
};

/// The member "hf" of describe() as JSON: transformers' names of the weights, which are the names here. `config`: the
/// contents of config.json.
std::string hf_names(const DecoderShape& shape, const std::string& config, const torch::nn::Module& model);

}  // namespace capstan::models

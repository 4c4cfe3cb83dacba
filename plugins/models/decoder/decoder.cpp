#include "decoder.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/scalar_tensor.h>

#include "../by_rows.hpp"
#include "../tokens.hpp"
#include "capstan/few_rows_linear.hpp"

namespace capstan::models {
namespace {

constexpr TokenBounds kDecoderBounds{"config.max_position_embeddings", "config.vocab_size"};

}  // namespace

DecoderLayers::DecoderLayers(const ConfigJson& config, const DecoderShape& shape)
    : shape_(shape),
      rotary_(Rotary::of_full_layers(config, shape)),
      windowed_rotary_(Rotary::of_windowed_layers(config, shape)),
      embed_tokens_(register_module("embed_tokens", torch::nn::Embedding(shape.vocab_size, shape.hidden_size))),
      layers_(register_module("layers", torch::nn::ModuleList())) {
  for (std::size_t i = 0; i < shape.windowed.size(); ++i) layers_->push_back(std::make_shared<DecoderBlock>(shape, i));
  norm_ = register_module("norm", std::make_shared<DecoderNorm>(shape.hidden_size, shape.norm, shape.norm_eps));
}

at::Tensor DecoderLayers::embedded(const at::Tensor& ids) const {
  const at::Tensor hidden = at::embedding(embed_tokens_->weight, ids, shape_.padding);
  if (shape_.embedding_multiplier == 1) return hidden;
  if (!shape_.rounds_embedding_multiplier) return hidden * shape_.embedding_multiplier;
  return hidden * at::scalar_tensor(shape_.embedding_multiplier, at::kFloat).to(hidden.scalar_type());
}

AttentionInputs DecoderLayers::inputs(bool windowed, const Places& places, at::ScalarType dtype) const {
  const auto& [queries, keys, span, length] = places;
  AttentionInputs inputs{rotary(windowed).table(queries, length, shape_.rotary_in_fp32 ? at::kFloat : dtype), {}};
  const bool cuts = windowed && span >= shape_.window;
  if (!cuts && !shape_.explicit_attention) return inputs;
  const at::Tensor distance = queries.unsqueeze(-1) - keys.unsqueeze(-2);
  const at::Tensor seen = distance >= 0;
  inputs.mask = (cuts ? seen.logical_and(distance < shape_.window) : seen).unsqueeze(1);
  return inputs;
}

AttentionInputs DecoderLayers::inputs(bool windowed, const PackedRows& rows, at::ScalarType dtype) const {
  AttentionInputs inputs{rotary(windowed).table(rows, shape_.rotary_in_fp32 ? at::kFloat : dtype), {}, &rows};
  for (const at::Tensor& positions : rows.split_positions()) {
    // Of tokens that are left of a document, neighbours may be far apart.
    const bool cuts = windowed && (positions.size(0) >= shape_.window || !rows.is_whole());
    at::Tensor& mask = inputs.masks.emplace_back();
    if (!cuts && !shape_.explicit_attention) continue;
    const at::Tensor distance = positions.unsqueeze(-1) - positions.unsqueeze(-2);
    mask = distance >= 0;
    if (cuts) mask = mask.logical_and(distance < shape_.window);
  }
  return inputs;
}

at::Tensor DecoderLayers::forward(const at::Tensor& ids, const PackedRows* packed) {
  at::Tensor hidden = embedded(ids);
  const std::int64_t length = ids.size(1);
  const auto dtype = hidden.scalar_type();
  const at::Tensor positions = at::arange(length, ids.options()).unsqueeze(0);
  std::array<std::optional<AttentionInputs>, 2> shared;
  for (std::size_t i = 0; i < layers_->size(); ++i) {
    const bool windowed = shape_.windowed[i];
    auto& common = shared[windowed];
    if (!common) {
      common =
          packed ? inputs(windowed, *packed, dtype) : inputs(windowed, {positions, positions, length, length}, dtype);
    }
    const auto run = [&](const at::Tensor& given, const Arguments& arguments) {
      auto& layer = layers_->at<DecoderBlock>(i);
      // A component that drops tokens gives the places in their rows of the tokens that are left.
      const at::Tensor places = arguments.get("position_ids");
      if (places.is_same(positions)) return layer.forward(given, *common);
      if (!packed) return layer.forward(given, inputs(windowed, {places, places, length, length}, dtype));
      const PackedRows kept = packed->kept(places);
      return layer.forward(given, inputs(windowed, kept, dtype));
    };
    hidden = layer("model.layers." + std::to_string(i), hidden, {{"position_ids", positions}}, run);
  }
  return norm_->forward(hidden);
}

DecodeInputs DecoderLayers::decode_inputs(bool windowed, const DecodedTokens& tokens, const KeyValueCache& cache,
                                          at::ScalarType dtype) const {
  const at::Tensor positions = cache.positions(tokens);
  // Frequencies that depend on the length are, from the first token on, those of the longest sequence.
  const auto table = [&](at::Tensor RotaryTable::*part) {
    return by_rows(positions, [&](const at::Tensor& row) {
      return rotary(windowed).table(row, cache.capacity(), shape_.rotary_in_fp32 ? at::kFloat : dtype).*part;
    });
  };
  DecodeInputs inputs{{table(&RotaryTable::cos), table(&RotaryTable::sin)}, tokens, windowed ? shape_.window : 0, {}};
  for (std::size_t i = 0; i < tokens.rows.size(); ++i) {
    const std::int64_t before = cache.tokens(tokens.rows[i]), length = before + tokens.count();
    const bool cuts = windowed && length >= shape_.window;
    const bool continues = before > 0 && !tokens.are_single();
    at::Tensor& mask = inputs.masks.emplace_back();
    if (!cuts && !continues && !shape_.explicit_attention) continue;
    const at::Tensor queries = positions.narrow(0, static_cast<std::int64_t>(i), 1).unsqueeze(-1);
    const at::Tensor distance = queries - at::arange(length, queries.options());
    mask = distance >= 0;
    if (cuts) mask = mask.logical_and(distance < shape_.window);
    mask = mask.unsqueeze(1);
  }
  return inputs;
}

at::Tensor DecoderLayers::decode(const DecodedTokens& tokens, KeyValueCache& cache) {
  at::Tensor hidden = embedded(tokens.ids);
  std::array<std::optional<DecodeInputs>, 2> shared;
  for (std::size_t i = 0; i < layers_->size(); ++i) {
    auto& common = shared[shape_.windowed[i]];
    if (!common) common.emplace(decode_inputs(shape_.windowed[i], tokens, cache, hidden.scalar_type()));
    hidden = layers_->at<DecoderBlock>(i).decode(hidden, *common, cache);
  }
  return tokens.are_single() ? norm_->decode(hidden) : norm_->forward(hidden.narrow(1, tokens.count() - 1, 1));
}

Decoder::Decoder(sdk::Host, const sdk::Params& params)
    : shape_(DecoderShape::from(ConfigJson(params))),
      config_(ConfigJson(params).json()),
      model_(register_module("model", std::make_shared<DecoderLayers>(ConfigJson(params), shape_))) {
  if (!shape_.tied_head) {
    const auto options = torch::nn::LinearOptions(shape_.hidden_size, shape_.vocab_size).bias(false);
    lm_head_ = register_module("lm_head", torch::nn::Linear(options));
  }
  initialize();
}

void Decoder::initialize() {
  const at::NoGradGuard no_grad;
  for (const auto& item : named_parameters()) {
    at::Tensor parameter = item.value();
    // Biases and norms are the parameters of one dimension; norms have their values.
    if (parameter.dim() > 1) {
      parameter.normal_(0.0, shape_.initializer_range);
    } else if (item.key().ends_with("_proj.bias")) {
      parameter.zero_();
    }
  }
  if (shape_.padding >= 0) model_->embedding().select(0, shape_.padding).zero_();
}

void Decoder::check(const sdk::BatchView& batch) const {
  check_tokens(batch, shape_.max_positions, shape_.vocab_size, kDecoderBounds);
  check_packed_rows(batch, shape_.max_positions, kDecoderBounds);
}

at::Tensor Decoder::hidden_states(const sdk::BatchView& batch, const at::Tensor& ids) {
  const std::optional<PackedRows> packed = read_packed_rows(batch, ids.sizes());
  return model_->forward(ids, packed ? &*packed : nullptr);
}

at::Tensor Decoder::forward(const sdk::BatchView& batch) {
  const Tokens tokens = read_tokens(batch, shape_.max_positions, kDecoderBounds);
  return linear_cross_entropy(hidden_states(batch, tokens.inputs), head_weight(), tokens.labels, head());
}

sdk::NamedOutputs Decoder::outputs(const sdk::BatchView& batch) {
  return {{"logits", logits_of(hidden_states(batch, read_inputs(batch, shape_.max_positions, kDecoderBounds)))}};
}

at::Tensor Decoder::decode(const at::Tensor& ids, Cache& cache) {
  return decoded_logits(ids, cache, shape_.max_positions, kDecoderBounds, [&](const DecodedTokens& tokens) {
    const at::Tensor products = few_rows_linear(model_->decode(tokens, cache).squeeze(1), head_weight());
    return by_rows(products, [this](const at::Tensor& row) { return sdk::scaled_logits(row, head()); });
  });
}

const at::Tensor& Decoder::head_weight() const { return lm_head_ ? lm_head_->weight : model_->embedding(); }

LinearCrossEntropyOptions Decoder::head() const {
  LinearCrossEntropyOptions head;
  head.divisor = shape_.logits_divisor;
  if (shape_.logits_softcap > 0) head.softcap = shape_.logits_softcap;
  return head;
}

at::Tensor Decoder::logits_of(const at::Tensor& hidden) const {
  return sdk::head_logits(hidden, head_weight(), head());
}

}  // namespace capstan::models

CAPSTAN_PLUGIN(&capstan::sdk::model<capstan::models::Decoder, "decoder">)

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config_json.hpp"

namespace capstan::models {

enum class NormKind {
  kRms,         // weight * cast(x / rms(x))
  kRmsCast,     // cast(weight * x / rms(x)): OLMo 2
  kRmsPlusOne,  // cast((1 + weight) * x / rms(x)): Gemma
  kLayerNorm,   // with weight and bias: StableLM
  kPlain,       // LayerNorm without weight and bias, in fp32: OLMo
};

/// Norms of queries and keys: none, one for each head, or one over all heads together.
enum class HeadNorm { kNone, kEachHead, kAllHeads };

/// Where a block has its norms: before attention and MLP, after them, or both.
enum class NormPlace { kBefore, kAfter, kAround };

enum class Activation { kSilu, kGelu, kGeluTanh };

/// All that sets one decoder of transformers apart from another. Names follow the keys of config.json where both mean
/// one thing.
struct DecoderShape {
  std::string model_type;
  std::int64_t layers = 0, hidden_size = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate_size = 0;
  std::int64_t vocab_size = 0, max_positions = 0;
  std::int64_t padding = -1;  // the id whose embedding gets no gradient; -1: none
  bool tied_head = false;
  double initializer_range = 0.02;

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  NormPlace norm_place = NormPlace::kBefore;
  HeadNorm head_norm = HeadNorm::kNone;

  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool fused_projections = false;  // qkv_proj and gate_up_proj: Phi-3
  Activation activation = Activation::kSilu;

  double attention_scale = 0;
  double attention_softcap = 0;     // 0: none
  bool explicit_attention = false;  // scores, softmax and their product one by one, as transformers does for Gemma 2
  double clip_qkv = 0;              // 0: not clipped
  std::int64_t window = 0;          // tokens that a windowed layer attends to, itself among them
  std::vector<bool> windowed;       // one a layer
  std::vector<bool> rotary;         // one a layer: whether positions turn its queries and keys
  bool rotary_in_fp32 = false;      // OLMo multiplies by cosines and sines in fp32

  double embedding_multiplier = 1;
  bool rounds_embedding_multiplier = false;  // to the dtype of the weights: Gemma
  double residual_multiplier = 1;
  double logits_divisor = 1;
  double logits_softcap = 0;  // 0: none

  /// Reads both dialects of config.json, that of transformers 5 and that of transformers 4. Throws sdk::ConfigMistake
  /// for a model that this plugin does not compute.
  static DecoderShape from(const ConfigJson& config);
};

}  // namespace capstan::models

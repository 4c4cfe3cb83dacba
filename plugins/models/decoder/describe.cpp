#include <algorithm>
#include <string>

#include "decoder.hpp"

namespace capstan::models {
namespace {

// A sample has as many tokens unless the run says otherwise. Models that take 128 K tokens would need too much memory.
constexpr std::int64_t kLongestSample = 2048;

/// Keys of config.json that the computation depends on: a folder that is read must agree in them or lack them.
constexpr const char* kMustAgree[] = {"model_type",
                                      "hidden_size",
                                      "intermediate_size",
                                      "num_hidden_layers",
                                      "num_attention_heads",
                                      "num_key_value_heads",
                                      "head_dim",
                                      "vocab_size",
                                      "rms_norm_eps",
                                      "layer_norm_eps",
                                      "hidden_act",
                                      "hidden_activation",
                                      "attention_bias",
                                      "mlp_bias",
                                      "use_qkv_bias",
                                      "use_sliding_window",
                                      "sliding_window",
                                      "max_window_layers",
                                      "sliding_window_pattern",
                                      "layer_types",
                                      "no_rope_layers",
                                      "no_rope_layer_interval",
                                      "rope_theta",
                                      "rope_local_base_freq",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "partial_rotary_factor",
                                      "original_max_position_embeddings",
                                      "query_pre_attn_scalar",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping",
                                      "clip_qkv",
                                      "embedding_multiplier",
                                      "residual_multiplier",
                                      "attention_multiplier",
                                      "logits_scaling"};

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

/// Layers whose rows are those of several layers of one shape, for pruning.
std::string fused_layers(const DecoderShape& shape) {
  std::string text;
  for (std::int64_t i = 0; shape.fused_projections && i < shape.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    text += (text.empty() ? "" : ", ") + quoted(layer + ".mlp.gate_up_proj") + ": 2";
    if (shape.kv_heads == shape.heads) text += ", " + quoted(layer + ".self_attn.qkv_proj") + ": 3";
  }
  return "{" + text + "}";
}

std::string number(const char* key, std::int64_t value) { return quoted(key) + ": " + std::to_string(value) + ", "; }

}  // namespace

std::string hf_names(const DecoderShape& shape, const std::string& config, const torch::nn::Module& model) {
  std::string agree, tensors;
  for (const char* key : kMustAgree) agree += (agree.empty() ? "" : ", ") + quoted(key);
  // A head of its own may begin as the copy of a tied one, not the other way round.
  if (shape.tied_head) agree += ", \"tie_word_embeddings\"";
  for (const auto& item : model.named_parameters()) {
    tensors += (tensors.empty() ? "" : ", ") + ("{\"parameter\": " + quoted(item.key())) +
               ", \"name\": " + quoted(item.key()) +
               (item.key() == "lm_head.weight" ? ", \"or\": \"model.embed_tokens.weight\"}" : "}");
  }
  // Older files hold the frequencies of rotary embeddings; a tied head may be there as a copy.
  const std::string ignored = std::string("\".rotary_emb.inv_freq\"") + (shape.tied_head ? ", \"lm_head.weight\"" : "");
  return "{\"config\": " + config + ", \"must_agree\": [" + agree +
         "], \"prefix\": \"model.\", \"layers_key\": \"num_hidden_layers\", \"tensors\": [" + tensors +
         "], \"ignored\": [" + ignored + "]}";
}

std::string Decoder::describe() const {
  return "{" + number("sequence_length", std::min(shape_.max_positions, kLongestSample)) +
         number("hidden_size", shape_.hidden_size) + number("vocab_size", shape_.vocab_size) +
         number("layers", shape_.layers) + number("heads", shape_.heads) + number("positions", shape_.max_positions) +
         "\"ragged_decode\": " + (model_->turns_by_length() ? "false" : "true") + ", " + kReadsPackedRows +
         ", \"fused\": " + fused_layers(shape_) + ", \"hf\": " + hf_names(shape_, config_, *this) + "}";
}

}  // namespace capstan::models

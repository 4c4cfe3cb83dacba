#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A family of models that llama.cpp has under one name.
struct GgufArchitecture {
  const char* name;        // general.architecture
  const char* model_type;  // that a file of it gets
  const char* also;        // a further model type that goes to it; null: none
  const char* class_name;  // of transformers, for "architectures"
  const char* activation;
  bool pairs_rows = false;     // of q and k
  bool adds_one = false;       // to the weights of norms
  bool has_head_size = true;   // key_length and value_length tell head_dim
  bool layer_norm = false;     // its norms subtract the mean, so that their epsilon has another key
  bool around = false;         // norms behind attention and MLP have names of their own
  bool has_biases = false;     // attention_bias and mlp_bias may be true
  bool needs_head = false;     // llama.cpp wants lm_head's weight even where it is the embedding's
  std::int64_t head_size = 0;  // where config.json has no head_dim; 0: hidden_size / num_attention_heads

  bool is(std::string_view other) const { return other == name; }
};

/// All that are known here.
std::span<const GgufArchitecture> gguf_architectures();
/// "llama, qwen2, ..."
std::string known_gguf_architectures();
/// The architecture of a config.json; null where its model type has none here.
const GgufArchitecture* gguf_architecture_of(const Json& config);

/// Keys of config.json, and of the metadata behind "<architecture>.", of the whole numbers that every architecture has.
inline constexpr std::pair<std::string_view, std::string_view> kGgufCounts[] = {
    {"num_hidden_layers", "block_count"},
    {"max_position_embeddings", "context_length"},
    {"hidden_size", "embedding_length"},
    {"intermediate_size", "feed_forward_length"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"}};

/// A number of one architecture: its key in config.json and behind "<architecture>.".
struct GgufNumber {
  std::string_view architecture, key, there;
  double otherwise;  // where config.json has none; 0: then the metadata have none either
};

inline constexpr GgufNumber kGgufNumbers[] = {{"gemma2", "attn_logit_softcapping", "attn_logit_softcapping", 50},
                                              {"gemma2", "final_logit_softcapping", "final_logit_softcapping", 30},
                                              {"gemma3", "final_logit_softcapping", "final_logit_softcapping", 0},
                                              {"granite", "attention_multiplier", "attention.scale", 1},
                                              {"granite", "embedding_multiplier", "embedding_scale", 1},
                                              {"granite", "residual_multiplier", "residual_scale", 1},
                                              {"granite", "logits_scaling", "logit_scale", 1},
                                              {"olmo", "clip_qkv", "attention.clamp_kqv", 0}};

/// Keys of config.json, and whole keys of the metadata, of the numbers of special tokens.
inline constexpr std::pair<std::string_view, std::string_view> kGgufTokens[] = {
    {"bos_token_id", "tokenizer.ggml.bos_token_id"},
    {"eos_token_id", "tokenizer.ggml.eos_token_id"},
    {"pad_token_id", "tokenizer.ggml.padding_token_id"}};

/// Reads members of config.json and names the one that a GGUF file cannot do without, or cannot hold.
class PretrainedKeys {
 public:
  explicit PretrainedKeys(const Json& config) : config_(config) {}

  const Json* find(std::string_view key) const {
    const Json* value = config_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::int64_t count(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) fail(key, "is missing, and a GGUF file needs it.");
    return count(key, *value);
  }
  std::int64_t count(std::string_view key, std::int64_t otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : count(key, *value);
  }
  double number(std::string_view key, double otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) fail(key, "must be a number, got " + value->dump() + ".");
    return value->as_number();
  }
  bool flag(std::string_view key, bool otherwise = false) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_bool()) fail(key, "must be true or false, got " + value->dump() + ".");
    return value->as_bool();
  }
  std::string text(std::string_view key, const char* otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fail(key, "must be a text, got " + value->dump() + ".");
    return value->as_string();
  }
  [[noreturn]] static void fail(std::string_view key, const std::string& defect) {
    throw RuntimeFault("the model's config.json: " + std::string(key) + " " + defect);
  }

 private:
  static std::int64_t count(std::string_view key, const Json& value) {
    if (value.is_integer() && value.as_integer() > 0 && value.as_integer() <= INT32_MAX) return value.as_integer();
    fail(key, "must be a positive whole number, got " + value.dump() + ".");
  }

  const Json& config_;
};

/// The heads of queries, or of keys and values, and the elements of a head, of a config.json.
std::int64_t heads_of(const PretrainedKeys& keys, bool of_keys);
std::int64_t head_size_of(const PretrainedKeys& keys, const GgufArchitecture& architecture);

}  // namespace capstan

// A config.json of transformers as a GGUF file's metadata.

#include "core/pretrained/gguf_architecture.hpp"
#include "core/pretrained/gguf_model.hpp"
#include "core/pretrained/rotary_scaling.hpp"

namespace capstan {
namespace {

/// Puts the rotary embedding of a config.json into metadata.
void put_rotation(Json& metadata, const GgufArchitecture& architecture, const Json& config) {
  const std::string begin = std::string(architecture.name) + ".";
  const RotaryKeys rotary = rotary_keys(config);
  metadata[begin + "rope.freq_base"] = rotary.theta;
  if (rotary.type == "linear") {
    metadata[begin + "rope.scaling.type"] = "linear";
    metadata[begin + "rope.scaling.factor"] = rotary.factor;
  } else if (rotary.type != "default" && !(rotary.type == "llama3" && architecture.pairs_rows)) {
    PretrainedKeys::fail("rope_scaling",
                         "scales rotary positions as '" + rotary.type +
                             "', and a GGUF file that is written here holds 'default' and 'linear', of llama "
                             "and granite 'llama3' too. Use --to hf.");
  }
}

void put_numbers(Json& metadata, const GgufArchitecture& architecture, const PretrainedKeys& keys) {
  for (const GgufNumber& number : kGgufNumbers) {
    if (!architecture.is(number.architecture)) continue;
    const double value = keys.number(number.key, number.otherwise);
    if (value != 0) metadata[std::string(number.architecture) + "." + std::string(number.there)] = value;
  }
}

/// llama.cpp knows by their layers the models of 27 billion parameters, which scale by the width of all heads.
void check_attention_scale(const PretrainedKeys& keys, std::int64_t layers_of_27b) {
  const std::int64_t scale = keys.count("num_hidden_layers") == layers_of_27b
                                 ? keys.count("hidden_size") / keys.count("num_attention_heads")
                                 : keys.count("head_dim", 256);
  if (keys.number("query_pre_attn_scalar", 256) == static_cast<double>(scale)) return;
  PretrainedKeys::fail("query_pre_attn_scalar",
                       "is not " + std::to_string(scale) + ", which llama.cpp takes for a model of this shape.");
}

/// The layers without a window, where each `period`-th has none.
void check_layer_types(const PretrainedKeys& keys, std::int64_t period) {
  const Json* kinds = keys.find("layer_types");
  for (std::size_t i = 0; kinds != nullptr && i < kinds->size(); ++i) {
    const bool whole = static_cast<std::int64_t>(i + 1) % period == 0;
    if (kinds->as_array()[i] == Json(whole ? "full_attention" : "sliding_attention")) continue;
    PretrainedKeys::fail("layer_types", "differs from llama.cpp's order of layers with and without a window in layer " +
                                            std::to_string(i) + ".");
  }
}

void put_gemma2(Json& metadata, const PretrainedKeys& keys) {
  metadata["gemma2.attention.sliding_window"] = keys.count("sliding_window", 4096);
  check_attention_scale(keys, 46);
  check_layer_types(keys, 2);
}

/// The number of layers from one without a window to the next, as layer_types or sliding_window_pattern tell it.
std::int64_t window_period(const PretrainedKeys& keys) {
  const Json* kinds = keys.find("layer_types");
  for (std::size_t i = 0; kinds != nullptr && i < kinds->size(); ++i) {
    if (kinds->as_array()[i] == Json("full_attention")) return static_cast<std::int64_t>(i + 1);
  }
  return kinds != nullptr ? static_cast<std::int64_t>(kinds->size()) + 1 : keys.count("sliding_window_pattern", 6);
}

void put_gemma3(Json& metadata, const PretrainedKeys& keys, const Json& config) {
  const std::int64_t period = window_period(keys);
  metadata["gemma3.attention.sliding_window"] = keys.count("sliding_window", 4096);
  metadata["gemma3.attention.sliding_window_pattern"] = period;
  metadata["gemma3.rope.freq_base_swa"] = rotary_keys(config).local_theta;
  check_attention_scale(keys, 62);
  check_layer_types(keys, period);
}

/// llama.cpp leaves out the rotation in every fourth layer of SmolLM3.
void check_rotated_layers(const PretrainedKeys& keys) {
  const Json* turns = keys.find("no_rope_layers");
  for (std::size_t i = 0; turns != nullptr && i < turns->size(); ++i) {
    if (turns->as_array()[i] == Json((i + 1) % 4 != 0 ? 1 : 0)) continue;
    PretrainedKeys::fail(
        "no_rope_layers",
        "differs from llama.cpp's, which rotates all but every fourth layer, in layer " + std::to_string(i) + ".");
  }
  if (turns == nullptr && keys.count("no_rope_layer_interval", 4) != 4) {
    PretrainedKeys::fail("no_rope_layer_interval", "is not 4, as llama.cpp has it.");
  }
}

/// Refuses keys with which llama.cpp computes another model than transformers does.
void check_keys(const GgufArchitecture& architecture, const PretrainedKeys& keys) {
  const bool is_tied = keys.flag("tie_word_embeddings", architecture.adds_one);
  if (architecture.is("gemma") && !is_tied) {
    PretrainedKeys::fail("tie_word_embeddings", "is false, and llama.cpp ties the embeddings of this model type.");
  }
  if (architecture.needs_head && is_tied) {
    PretrainedKeys::fail("tie_word_embeddings", "is true, and llama.cpp needs a weight lm_head for this model type.");
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (!architecture.has_biases && keys.flag(key)) {
      PretrainedKeys::fail(key, "is true, and llama.cpp has no such bias for this model type.");
    }
  }
  for (const char* key : {"qk_layernorm", "use_parallel_residual"}) {
    if (keys.flag(key)) PretrainedKeys::fail(key, "is true, which is not known here.");
  }
  if (architecture.is("smollm3")) check_rotated_layers(keys);
}

void put_norm_epsilon(Json& metadata, const GgufArchitecture& architecture, const PretrainedKeys& keys) {
  const std::string begin = std::string(architecture.name) + ".attention.";
  if (!architecture.layer_norm) {
    metadata[begin + "layer_norm_rms_epsilon"] = keys.number("rms_norm_eps", 1e-6);
  } else {
    // That of OLMo's norms is fixed.
    metadata[begin + "layer_norm_epsilon"] = architecture.is("olmo") ? 1e-5 : keys.number("layer_norm_eps", 1e-5);
  }
}

}  // namespace

Json gguf_metadata(const Json& config) {
  const PretrainedKeys keys(config);
  const GgufArchitecture* architecture = gguf_architecture_of(config);
  if (architecture == nullptr) {
    PretrainedKeys::fail("model_type", "is '" + keys.text("model_type", "") + "', and a GGUF file is written of " +
                                           known_gguf_architectures() + " and mistral. Use --to hf or safetensors.");
  }
  check_keys(*architecture, keys);
  const std::string activation =
      keys.text("hidden_activation", keys.text("hidden_act", architecture->activation).c_str());
  // Gemma's first files say gelu for its tanh form.
  const bool is_tanh = architecture->is("gemma") && activation == "gelu";
  if (activation != architecture->activation && !is_tanh) {
    PretrainedKeys::fail("hidden_act", "is '" + activation + "', and llama.cpp computes '" +
                                           std::string(architecture->activation) + "' for this model type.");
  }
  const std::string begin = std::string(architecture->name) + ".";
  Json metadata = Json::object();
  metadata["general.architecture"] = architecture->name;
  for (const auto& [key, there] : kGgufCounts) {
    metadata[begin + std::string(there)] = key == "num_key_value_heads" ? heads_of(keys, true) : keys.count(key);
  }
  const std::int64_t size = head_size_of(keys, *architecture);
  if (architecture->has_head_size) {
    metadata[begin + "attention.key_length"] = size;
    metadata[begin + "attention.value_length"] = size;
  }
  metadata[begin + "rope.dimension_count"] =
      static_cast<std::int64_t>(static_cast<double>(size) * rotary_keys(config).partial_rotary_factor);
  put_norm_epsilon(metadata, *architecture, keys);
  metadata[begin + "vocab_size"] = keys.count("vocab_size");
  put_rotation(metadata, *architecture, config);
  put_numbers(metadata, *architecture, keys);
  if (architecture->is("gemma2")) put_gemma2(metadata, keys);
  if (architecture->is("gemma3")) put_gemma3(metadata, keys, config);
  if (architecture->is("stablelm")) metadata["stablelm.use_parallel_residual"] = false;
  if (architecture->is("phi3") && keys.find("sliding_window") != nullptr) {
    metadata["phi3.attention.sliding_window"] = keys.count("sliding_window");
  }
  for (const auto& [key, there] : kGgufTokens) {
    const Json* id = keys.find(key);
    // Several ends of a text are the business of generation_config.json; GGUF has the first.
    if (id != nullptr && id->is_array() && id->size() > 0) id = &id->as_array()[0];
    if (id != nullptr && id->is_integer() && id->as_integer() >= 0) metadata[there] = *id;
  }
  return metadata;
}

std::vector<float> rope_divisors(const Json& config) {
  const RotaryKeys rotary = rotary_keys(config);
  if (rotary.type != "llama3") return {};
  const GgufArchitecture* architecture = gguf_architecture_of(config);
  if (architecture == nullptr) return {};
  return llama3_divisors(rotary.llama3, rotary.theta, head_size_of(PretrainedKeys(config), *architecture));
}

std::vector<std::string> gguf_differences(const Json& config) {
  const PretrainedKeys keys(config);
  const GgufArchitecture* architecture = gguf_architecture_of(config);
  std::vector<std::string> sentences;
  const bool by_flag = architecture->is("qwen2") || architecture->is("qwen3") || architecture->is("smollm3");
  const bool off =
      architecture->is("gemma2") || architecture->is("gemma3") || (by_flag && !keys.flag("use_sliding_window"));
  if (!off && keys.find("sliding_window") != nullptr &&
      keys.count("sliding_window") < keys.count("max_position_embeddings")) {
    sentences.push_back("llama.cpp attends to all tokens: beyond sliding_window, " +
                        std::to_string(keys.count("sliding_window")) + " tokens, its results differ.");
  }
  return sentences;
}

}  // namespace capstan

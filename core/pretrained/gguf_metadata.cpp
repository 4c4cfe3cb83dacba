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
  } else if (rotary.type != "default" && !(rotary.type == "llama3" && architecture.is("llama"))) {
    PretrainedKeys::fail("rope_scaling",
                         "scales rotary positions as '" + rotary.type +
                             "', and a GGUF file that is written here holds 'default' and 'linear', of llama "
                             "'llama3' too. Use --to hf.");
  }
}

void put_gemma2(Json& metadata, const PretrainedKeys& keys) {
  metadata["gemma2.attn_logit_softcapping"] = keys.number("attn_logit_softcapping", 50.0);
  metadata["gemma2.final_logit_softcapping"] = keys.number("final_logit_softcapping", 30.0);
  metadata["gemma2.attention.sliding_window"] = keys.count("sliding_window", 4096);
  const std::int64_t layers = keys.count("num_hidden_layers");
  const std::int64_t scale =
      layers == 46 ? keys.count("hidden_size") / keys.count("num_attention_heads") : keys.count("head_dim", 256);
  if (keys.number("query_pre_attn_scalar", 256) != static_cast<double>(scale)) {
    PretrainedKeys::fail("query_pre_attn_scalar",
                         "is not " + std::to_string(scale) + ", which llama.cpp takes for a model of this shape.");
  }
  const Json* kinds = keys.find("layer_types");
  for (std::size_t i = 0; kinds != nullptr && i < kinds->size(); ++i) {
    if (kinds->as_array()[i] == Json(i % 2 == 0 ? "sliding_attention" : "full_attention")) continue;
    PretrainedKeys::fail("layer_types", "differs from llama.cpp's order of layers with and without a window in layer " +
                                            std::to_string(i) + ".");
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
  const std::string activation =
      keys.text("hidden_activation", keys.text("hidden_act", architecture->activation).c_str());
  if (activation != architecture->activation) {
    PretrainedKeys::fail("hidden_act", "is '" + activation + "', and llama.cpp computes '" +
                                           std::string(architecture->activation) + "' for this model type.");
  }
  const std::string begin = std::string(architecture->name) + ".";
  Json metadata = Json::object();
  metadata["general.architecture"] = architecture->name;
  for (const auto& [key, there] : kGgufCounts) {
    metadata[begin + std::string(there)] = key == "num_key_value_heads" ? heads_of(keys, true) : keys.count(key);
  }
  const std::int64_t size = architecture->is("gemma2") ? keys.count("head_dim", 256) : head_size_of(keys);
  if (architecture->has_head_size) {
    metadata[begin + "attention.key_length"] = size;
    metadata[begin + "attention.value_length"] = size;
  }
  metadata[begin + "rope.dimension_count"] =
      static_cast<std::int64_t>(static_cast<double>(size) * rotary_keys(config).partial_rotary_factor);
  metadata[begin + "attention.layer_norm_rms_epsilon"] = keys.number("rms_norm_eps", 1e-6);
  metadata[begin + "vocab_size"] = keys.count("vocab_size");
  put_rotation(metadata, *architecture, config);
  if (architecture->is("gemma2")) put_gemma2(metadata, keys);
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
  return llama3_divisors(rotary.llama3, rotary.theta, head_size_of(PretrainedKeys(config)));
}

std::vector<std::string> gguf_differences(const Json& config) {
  const PretrainedKeys keys(config);
  const GgufArchitecture* architecture = gguf_architecture_of(config);
  std::vector<std::string> sentences;
  const bool off = architecture->is("gemma2") || (architecture->is("qwen2") && !keys.flag("use_sliding_window")) ||
                   (architecture->is("qwen3") && !keys.flag("use_sliding_window"));
  if (!off && keys.find("sliding_window") != nullptr &&
      keys.count("sliding_window") < keys.count("max_position_embeddings")) {
    sentences.push_back("llama.cpp attends to all tokens: beyond sliding_window, " +
                        std::to_string(keys.count("sliding_window")) + " tokens, its results differ.");
  }
  return sentences;
}

}  // namespace capstan

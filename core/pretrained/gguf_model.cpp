#include "core/pretrained/gguf_model.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "core/pretrained/rotary_scaling.hpp"

namespace capstan {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

/// A family of models that llama.cpp has under one name.
struct Architecture {
  const char* name;        // general.architecture
  const char* model_type;  // that a file of it gets
  const char* also;        // a further model type that goes to it; null: none
  const char* class_name;  // of transformers, for "architectures"
  const char* activation;
  bool pairs_rows = false;    // of q and k
  bool adds_one = false;      // to the weights of norms
  bool has_head_size = true;  // key_length and value_length tell head_dim
};

constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "mistral", "LlamaForCausalLM", "silu", true, false, true},
    {"qwen2", "qwen2", nullptr, "Qwen2ForCausalLM", "silu", false, false, false},
    {"qwen3", "qwen3", nullptr, "Qwen3ForCausalLM", "silu", false, false, true},
    {"gemma2", "gemma2", nullptr, "Gemma2ForCausalLM", "gelu_pytorch_tanh", false, true, true},
    {"phi3", "phi3", nullptr, "Phi3ForCausalLM", "silu", false, false, false},
};

/// Names outside the layers, in transformers and in GGUF, without ".weight".
constexpr Pair kWhole[] = {{"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};

/// Names in a layer, of all architectures.
constexpr Pair kInLayers[] = {{"input_layernorm", "attn_norm"},
                              {"self_attn.q_proj", "attn_q"},
                              {"self_attn.k_proj", "attn_k"},
                              {"self_attn.v_proj", "attn_v"},
                              {"self_attn.o_proj", "attn_output"},
                              {"self_attn.q_norm", "attn_q_norm"},
                              {"self_attn.k_norm", "attn_k_norm"},
                              {"self_attn.qkv_proj", "attn_qkv"},
                              {"mlp.gate_proj", "ffn_gate"},
                              {"mlp.up_proj", "ffn_up"},
                              {"mlp.gate_up_proj", "ffn_up"},
                              {"mlp.down_proj", "ffn_down"},
                              {"pre_feedforward_layernorm", "ffn_norm"},
                              {"post_feedforward_layernorm", "post_ffw_norm"}};

/// Whole numbers that every architecture has, by their keys in config.json and in the metadata.
constexpr Pair kCounts[] = {{"num_hidden_layers", "block_count"},
                            {"max_position_embeddings", "context_length"},
                            {"hidden_size", "embedding_length"},
                            {"intermediate_size", "feed_forward_length"},
                            {"num_attention_heads", "attention.head_count"},
                            {"num_key_value_heads", "attention.head_count_kv"}};

constexpr Pair kTokens[] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                            {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                            {"pad_token_id", "tokenizer.ggml.padding_token_id"}};

bool is(const Architecture& architecture, const char* name) { return std::string_view(architecture.name) == name; }

std::string known_architectures() {
  std::string names;
  for (const Architecture& one : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(one.name);
  return names;
}

/// The architecture of a config.json; null where its model type has none here.
const Architecture* architecture_of(const Json& config) {
  const Json* type = config.find("model_type");
  if (type == nullptr || !type->is_string()) return nullptr;
  const auto found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures), [&](const Architecture& one) {
    return type->as_string() == one.model_type || (one.also != nullptr && type->as_string() == one.also);
  });
  return found == std::end(kArchitectures) ? nullptr : found;
}

/// Reads members of config.json and names the one that a GGUF file cannot do without, or cannot hold.
class ConfigKeys {
 public:
  explicit ConfigKeys(const Json& config) : config_(config) {}

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

std::int64_t heads_of(const ConfigKeys& keys, bool of_keys) {
  const std::int64_t heads = keys.count("num_attention_heads");
  return of_keys ? keys.count("num_key_value_heads", heads) : heads;
}

std::int64_t head_size(const ConfigKeys& keys) {
  const std::int64_t heads = keys.count("num_attention_heads");
  return keys.count("head_dim", keys.count("hidden_size") / heads);
}

/// "blk.3." and what follows, for "model.layers.3." and what follows; nothing for another name.
std::optional<std::pair<std::string, std::string_view>> in_layer(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  const std::string_view rest = name.substr(kLayers.size());
  const std::size_t dot = rest.find('.');
  if (dot == 0 || dot == std::string_view::npos) return std::nullopt;
  if (rest.substr(0, dot).find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return std::pair("blk." + std::string(rest.substr(0, dot)) + ".", rest.substr(dot + 1));
}

std::optional<std::string_view> second_of(std::string_view first, const Pair* begin, const Pair* end) {
  const auto found = std::find_if(begin, end, [&](const Pair& pair) { return pair.first == first; });
  return found == end ? std::nullopt : std::optional(found->second);
}

/// The number that a float32 stands for in decimal notation: 1e-05 for 9.99999975e-06.
double shortest(const GgufEntry& entry, double value) {
  if (entry.type != GgufValueType::kFloat32) return value;
  char text[32];
  const auto written = std::to_chars(text, text + sizeof text, static_cast<float>(value));
  std::from_chars(text, written.ptr, value);
  return value;
}

/// Reads the metadata of a file and complains with the file's name in front.
class GgufReading {
 public:
  GgufReading(const GgufHeader& header, const std::byte* file, const std::string& where)
      : header_(header), file_(file), where_(where) {}

  Json config() {
    const GgufEntry* entry = header_.find("general.architecture");
    const std::optional<std::string_view> name = entry ? entry->text() : std::nullopt;
    if (!name) fail("its metadata has no general.architecture, which tells what model it is.");
    const auto found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                    [&](const Architecture& one) { return one.name == *name; });
    if (found == std::end(kArchitectures)) {
      fail("its architecture is '" + std::string(name->substr(0, 100)) + "', and these are known: " +
           known_architectures() + ". Take the folder of transformers of that model, with --model hf:FOLDER.");
    }
    architecture_ = found;
    refuse_experts();
    refuse_parts();
    Json config = Json::object();
    config["architectures"] = Json(Json::Array{Json(architecture_->class_name)});
    config["model_type"] = architecture_->model_type;
    for (const auto& [key, there] : kCounts) config[key] = count(there);
    add_head_size(config);
    config["vocab_size"] = vocabulary();
    config["hidden_act"] = architecture_->activation;
    if (is(*architecture_, "gemma2")) config["hidden_activation"] = architecture_->activation;
    config["rms_norm_eps"] = number("attention.layer_norm_rms_epsilon");
    config["tie_word_embeddings"] = header_.tensor("output.weight") == nullptr;
    add_biases(config);
    add_rotation(config);
    if (is(*architecture_, "gemma2")) add_gemma2(config);
    if (is(*architecture_, "phi3")) add_window(config);
    for (const auto& [key, there] : kTokens) {
      const GgufEntry* token = header_.find(there);
      if (const auto id = token ? token->integer() : std::nullopt) config[key] = *id;
    }
    return config;
  }

 private:
  [[noreturn]] void fail(const std::string& defect) const { throw RuntimeFault(where_ + ": " + defect); }

  std::string key(std::string_view rest) const { return std::string(architecture_->name) + "." + std::string(rest); }
  const GgufEntry* find(std::string_view rest) const { return header_.find(key(rest)); }

  std::int64_t count(std::string_view rest) const {
    const GgufEntry* entry = find(rest);
    // A model whose heads are not grouped may leave their number out.
    if (entry == nullptr && rest == "attention.head_count_kv") return count("attention.head_count");
    if (entry == nullptr) fail("its metadata has no " + key(rest) + ", which the model needs.");
    return checked(rest, *entry);
  }

  std::int64_t checked(std::string_view rest, const GgufEntry& entry) const {
    const auto value = entry.integer();
    if (value && *value > 0 && *value <= INT32_MAX) return *value;
    fail("its metadata key " + key(rest) + " is not one positive whole number.");
  }

  double number(std::string_view rest) const {
    const GgufEntry* entry = find(rest);
    if (entry == nullptr) fail("its metadata has no " + key(rest) + ", which the model needs.");
    return checked_number(rest, *entry);
  }
  double checked_number(std::string_view rest, const GgufEntry& entry) const {
    const auto value = entry.number();
    if (!value || !std::isfinite(*value)) fail("its metadata key " + key(rest) + " is not a number.");
    return shortest(entry, *value);
  }

  void refuse_experts() const {
    const GgufEntry* experts = find("expert_count");
    if (experts == nullptr || experts->integer().value_or(1) == 0) return;
    fail("it is a mixture of experts (" + key("expert_count") + "), which is not known here.");
  }

  void refuse_parts() const {
    const GgufEntry* parts = header_.find("split.count");
    if (parts == nullptr || parts->integer().value_or(2) <= 1) return;
    fail("it is one of several files of a model (split.count). Join them with llama-gguf-split --merge FIRST OUT.");
  }

  void add_head_size(Json& config) const {
    const std::int64_t heads = config.at("num_attention_heads").as_integer();
    if (config.at("hidden_size").as_integer() % heads != 0 && find("attention.key_length") == nullptr) {
      fail("its " + key("embedding_length") + " is not a multiple of " + key("attention.head_count") + ".");
    }
    std::int64_t size = config.at("hidden_size").as_integer() / heads;
    if (const GgufEntry* entry = find("attention.key_length")) {
      size = checked("attention.key_length", *entry);
      const GgufEntry* values = find("attention.value_length");
      if (values != nullptr && checked("attention.value_length", *values) != size) {
        fail("its heads have keys of " + std::to_string(size) + " elements and values of another size.");
      }
    }
    if (architecture_->has_head_size) config["head_dim"] = size;
    const GgufEntry* rotated = find("rope.dimension_count");
    if (rotated == nullptr || checked("rope.dimension_count", *rotated) == size) return;
    if (!is(*architecture_, "phi3")) {
      fail("it rotates a part of each head (" + key("rope.dimension_count") + "), which is not known here.");
    }
    config["partial_rotary_factor"] =
        static_cast<double>(checked("rope.dimension_count", *rotated)) / static_cast<double>(size);
  }

  std::int64_t vocabulary() const {
    const GgufTensorInfo* embedding = header_.tensor("token_embd.weight");
    if (embedding != nullptr && embedding->shape.size() == 2) return embedding->shape[0];
    fail("it has no matrix token_embd.weight: it holds a vocabulary alone, or a part of a model.");
  }

  void add_biases(Json& config) const {
    if (!is(*architecture_, "llama")) return;
    config["attention_bias"] = header_.tensor("blk.0.attn_q.bias") != nullptr;
    config["mlp_bias"] = header_.tensor("blk.0.ffn_up.bias") != nullptr;
  }

  void add_rotation(Json& config) const {
    const GgufEntry* base = find("rope.freq_base");
    config["rope_theta"] = base == nullptr ? 10000.0 : checked_number("rope.freq_base", *base);
    config["rope_scaling"] = nullptr;
    for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
      if (header_.tensor(name) != nullptr) {
        fail("it scales rotary positions as LongRoPE does (tensor '" + std::string(name) +
             "'), which is not known here.");
      }
    }
    const GgufEntry* type = find("rope.scaling.type");
    const std::string_view name = type ? type->text().value_or("?") : "none";
    if (name == "linear") {
      config["rope_scaling"]["rope_type"] = "linear";
      config["rope_scaling"]["factor"] = number("rope.scaling.factor");
    } else if (name != "none") {
      fail("its " + key("rope.scaling.type") + " is '" + std::string(name.substr(0, 100)) +
           "', and 'none' and 'linear' are known here.");
    }
    if (const GgufTensorInfo* divisors = header_.tensor("rope_freqs.weight")) add_divisors(config, *divisors);
  }

  void add_divisors(Json& config, const GgufTensorInfo& tensor) const {
    const std::int64_t size = config.at("hidden_size").as_integer() / config.at("num_attention_heads").as_integer();
    const Json* told = config.find("head_dim");
    const std::int64_t pairs = (told ? told->as_integer() : size) / 2;
    if (tensor.type != GgufType::kF32 || tensor.shape != std::vector<std::int64_t>{pairs}) {
      fail("its tensor rope_freqs.weight does not hold " + std::to_string(pairs) + " numbers of type F32.");
    }
    std::vector<float> divisors(static_cast<std::size_t>(pairs));
    std::memcpy(divisors.data(), file_ + tensor.begin, divisors.size() * sizeof(float));
    const auto scaling = llama3_scaling(divisors, config.at("rope_theta").as_number());
    if (!scaling) {
      fail(
          "its tensor rope_freqs.weight is not the scaling of rotary positions of Llama 3, the one that is known "
          "here.");
    }
    if (scaling->factor == 1) return;
    Json& json = config["rope_scaling"];
    json["rope_type"] = "llama3";
    json["factor"] = scaling->factor;
    json["low_freq_factor"] = scaling->low_freq_factor;
    json["high_freq_factor"] = scaling->high_freq_factor;
    json["original_max_position_embeddings"] = scaling->original_length;
  }

  void add_gemma2(Json& config) const {
    config["attn_logit_softcapping"] = number("attn_logit_softcapping");
    config["final_logit_softcapping"] = number("final_logit_softcapping");
    config["sliding_window"] = count("attention.sliding_window");
    // llama.cpp's rule: the model of 27 billion parameters, which has 46 layers, scales by the width of all heads.
    const bool is_27b = config.at("num_hidden_layers").as_integer() == 46;
    config["query_pre_attn_scalar"] =
        is_27b ? config.at("hidden_size").as_integer() / config.at("num_attention_heads").as_integer()
               : config.at("head_dim").as_integer();
  }

  void add_window(Json& config) const {
    const GgufEntry* window = find("attention.sliding_window");
    if (window != nullptr && window->integer().value_or(1) != 0) {
      config["sliding_window"] = checked("attention.sliding_window", *window);
    }
  }

  const GgufHeader& header_;
  const std::byte* file_;
  const std::string& where_;
  const Architecture* architecture_ = nullptr;
};

/// Puts the rotary embedding of a config.json into metadata.
void put_rotation(Json& metadata, const Architecture& architecture, const Json& config) {
  const std::string begin = std::string(architecture.name) + ".";
  const RotaryKeys rotary = rotary_keys(config);
  metadata[begin + "rope.freq_base"] = rotary.theta;
  if (rotary.type == "linear") {
    metadata[begin + "rope.scaling.type"] = "linear";
    metadata[begin + "rope.scaling.factor"] = rotary.factor;
  } else if (rotary.type != "default" && !(rotary.type == "llama3" && is(architecture, "llama"))) {
    ConfigKeys::fail("rope_scaling",
                     "scales rotary positions as '" + rotary.type +
                         "', and a GGUF file that is written here holds 'default' and 'linear', of llama "
                         "'llama3' too. Use --to hf.");
  }
}

void put_gemma2(Json& metadata, const ConfigKeys& keys) {
  metadata["gemma2.attn_logit_softcapping"] = keys.number("attn_logit_softcapping", 50.0);
  metadata["gemma2.final_logit_softcapping"] = keys.number("final_logit_softcapping", 30.0);
  metadata["gemma2.attention.sliding_window"] = keys.count("sliding_window", 4096);
  const std::int64_t layers = keys.count("num_hidden_layers");
  const std::int64_t scale =
      layers == 46 ? keys.count("hidden_size") / keys.count("num_attention_heads") : keys.count("head_dim", 256);
  if (keys.number("query_pre_attn_scalar", 256) != static_cast<double>(scale)) {
    ConfigKeys::fail("query_pre_attn_scalar",
                     "is not " + std::to_string(scale) + ", which llama.cpp takes for a model of this shape.");
  }
  const Json* kinds = keys.find("layer_types");
  for (std::size_t i = 0; kinds != nullptr && i < kinds->size(); ++i) {
    if (kinds->as_array()[i] == Json(i % 2 == 0 ? "sliding_attention" : "full_attention")) continue;
    ConfigKeys::fail("layer_types", "differs from llama.cpp's order of layers with and without a window in layer " +
                                        std::to_string(i) + ".");
  }
}

}  // namespace

std::optional<GgufPlace> gguf_place(const Json& config, std::string_view name) {
  const Architecture* architecture = architecture_of(config);
  if (architecture == nullptr) return std::nullopt;
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view end = name.substr(dot), module = name.substr(0, dot);
  if (end != ".weight" && end != ".bias") return std::nullopt;

  GgufPlace place;
  const bool is_norm = module.ends_with("norm");
  place.plus_one = architecture->adds_one && is_norm;
  const auto layer = in_layer(module);
  if (!layer) {
    const auto there = second_of(module, std::begin(kWhole), std::end(kWhole));
    if (!there) return std::nullopt;
    place.name = std::string(*there) + std::string(end);
    return place;
  }
  auto there = second_of(layer->second, std::begin(kInLayers), std::end(kInLayers));
  if (layer->second == "post_attention_layernorm") {
    there = is(*architecture, "gemma2") ? "post_attention_norm" : "ffn_norm";
  }
  if (!there) return std::nullopt;
  place.name = layer->first + std::string(*there) + std::string(end);
  if (architecture->pairs_rows && (*there == "attn_q" || *there == "attn_k")) {
    place.rotary_heads = heads_of(ConfigKeys(config), *there == "attn_k");
  }
  return place;
}

Json config_of_gguf(const GgufHeader& header, const std::byte* file, const std::string& where) {
  return GgufReading(header, file, where).config();
}

Json gguf_metadata(const Json& config) {
  const ConfigKeys keys(config);
  const Architecture* architecture = architecture_of(config);
  if (architecture == nullptr) {
    ConfigKeys::fail("model_type", "is '" + keys.text("model_type", "") + "', and a GGUF file is written of " +
                                       known_architectures() + " and mistral. Use --to hf or safetensors.");
  }
  const std::string activation =
      keys.text("hidden_activation", keys.text("hidden_act", architecture->activation).c_str());
  if (activation != architecture->activation) {
    ConfigKeys::fail("hidden_act", "is '" + activation + "', and llama.cpp computes '" +
                                       std::string(architecture->activation) + "' for this model type.");
  }
  const std::string begin = std::string(architecture->name) + ".";
  Json metadata = Json::object();
  metadata["general.architecture"] = architecture->name;
  for (const auto& [key, there] : kCounts) {
    metadata[begin + std::string(there)] = key == "num_key_value_heads" ? heads_of(keys, true) : keys.count(key);
  }
  const std::int64_t size = is(*architecture, "gemma2") ? keys.count("head_dim", 256) : head_size(keys);
  if (architecture->has_head_size) {
    metadata[begin + "attention.key_length"] = size;
    metadata[begin + "attention.value_length"] = size;
  }
  metadata[begin + "rope.dimension_count"] =
      static_cast<std::int64_t>(static_cast<double>(size) * keys.number("partial_rotary_factor", 1.0));
  metadata[begin + "attention.layer_norm_rms_epsilon"] = keys.number("rms_norm_eps", 1e-6);
  metadata[begin + "vocab_size"] = keys.count("vocab_size");
  put_rotation(metadata, *architecture, config);
  if (is(*architecture, "gemma2")) put_gemma2(metadata, keys);
  if (is(*architecture, "phi3") && keys.find("sliding_window") != nullptr) {
    metadata["phi3.attention.sliding_window"] = keys.count("sliding_window");
  }
  for (const auto& [key, there] : kTokens) {
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
  return llama3_divisors(rotary.llama3, rotary.theta, head_size(ConfigKeys(config)));
}

std::vector<std::string> gguf_differences(const Json& config) {
  const ConfigKeys keys(config);
  const Architecture* architecture = architecture_of(config);
  std::vector<std::string> sentences;
  const bool off = is(*architecture, "gemma2") || (is(*architecture, "qwen2") && !keys.flag("use_sliding_window")) ||
                   (is(*architecture, "qwen3") && !keys.flag("use_sliding_window"));
  if (!off && keys.find("sliding_window") != nullptr &&
      keys.count("sliding_window") < keys.count("max_position_embeddings")) {
    sentences.push_back("llama.cpp attends to all tokens: beyond sliding_window, " +
                        std::to_string(keys.count("sliding_window")) + " tokens, its results differ.");
  }
  return sentences;
}

}  // namespace capstan

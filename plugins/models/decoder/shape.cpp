#include "shape.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace capstan::models {
namespace {

constexpr std::int64_t kMostLayers = 10000;

/// A model type: defaults of its configuration class in transformers 5.23, and what else sets it apart. A config.json
/// may leave out keys whose values are such defaults.
struct Family {
  const char* model_type;
  void (*read)(const ConfigJson& config, DecoderShape& shape);
  std::int64_t kv_heads = 0;  // 0: as many as heads of queries
  std::int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  std::int64_t padding = -1;
  bool tied_head = false;
  double norm_eps = 1e-6;
};

// A null stands for no window, where a key that is absent has the default.
std::int64_t window_of(const ConfigJson& config, std::int64_t otherwise) {
  return config.is_null("sliding_window") ? 0 : config.count("sliding_window", otherwise);
}

void read_layer_types(const ConfigJson& config, DecoderShape& shape) {
  if (!config.has("layer_types")) return;
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.size() != shape.windowed.size()) {
    config.refuse("layer_types", "has " + std::to_string(types.size()) + " entries, and num_hidden_layers is " +
                                     std::to_string(shape.layers) + ".");
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "sliding_attention" && types[i] != "full_attention") {
      config.refuse("layer_types", "has '" + types[i] + "'. Known are full_attention and sliding_attention.");
    }
    shape.windowed[i] = types[i] == "sliding_attention";
  }
}

/// Gives the window to the layers that "layer_types" names or, where it is absent, `is_windowed` names.
void read_windows(const ConfigJson& config, DecoderShape& shape, std::int64_t window,
                  const std::function<bool(std::size_t)>& is_windowed) {
  shape.window = window;
  for (std::size_t i = 0; i < shape.windowed.size(); ++i) shape.windowed[i] = window > 0 && is_windowed(i);
  read_layer_types(config, shape);
  if (window == 0 && std::find(shape.windowed.begin(), shape.windowed.end(), true) != shape.windowed.end()) {
    config.refuse("layer_types", "has sliding_attention, and the model has no sliding_window.");
  }
}

void read_attention_bias(const ConfigJson& config, DecoderShape& shape) {
  shape.qkv_bias = shape.output_bias = config.flag("attention_bias", false);
}

void read_llama(const ConfigJson& config, DecoderShape& shape) {
  read_attention_bias(config, shape);
  shape.mlp_bias = config.flag("mlp_bias", false);
}

void read_one_window(const ConfigJson& config, DecoderShape& shape, std::int64_t otherwise) {
  shape.window = window_of(config, otherwise);
  shape.windowed.assign(shape.windowed.size(), shape.window > 0);
}

void read_mistral(const ConfigJson& config, DecoderShape& shape) { read_one_window(config, shape, 4096); }

void read_late_windows(const ConfigJson& config, DecoderShape& shape) {
  const std::int64_t window = config.flag("use_sliding_window", false) ? window_of(config, 4096) : 0;
  const double first = config.number("max_window_layers", 28);
  read_windows(config, shape, window, [&](std::size_t i) { return static_cast<double>(i) >= first; });
}

void read_qwen2(const ConfigJson& config, DecoderShape& shape) {
  shape.qkv_bias = true;
  read_late_windows(config, shape);
}

void read_qwen3(const ConfigJson& config, DecoderShape& shape) {
  read_attention_bias(config, shape);
  shape.head_norm = HeadNorm::kEachHead;
  read_late_windows(config, shape);
}

void read_smollm3(const ConfigJson& config, DecoderShape& shape) {
  read_llama(config, shape);
  if (config.has("no_rope_layers")) {
    const std::vector<double> turns = config.numbers("no_rope_layers");
    if (turns.size() < shape.rotary.size()) {
      config.refuse("no_rope_layers", "has " + std::to_string(turns.size()) + " entries, and num_hidden_layers is " +
                                          std::to_string(shape.layers) + ".");
    }
    for (std::size_t i = 0; i < shape.rotary.size(); ++i) shape.rotary[i] = turns[i] != 0;
  } else {
    const auto interval = static_cast<std::size_t>(config.count("no_rope_layer_interval", 4));
    for (std::size_t i = 0; i < shape.rotary.size(); ++i) shape.rotary[i] = (i + 1) % interval != 0;
  }
  const bool uses_windows = config.flag("use_sliding_window", false);
  read_windows(config, shape, window_of(config, 0), [&](std::size_t i) { return uses_windows && !shape.rotary[i]; });
}

void read_any_gemma(const ConfigJson& config, DecoderShape& shape) {
  read_attention_bias(config, shape);
  shape.norm = NormKind::kRmsPlusOne;
  shape.embedding_multiplier = std::sqrt(static_cast<double>(shape.hidden_size));
  shape.rounds_embedding_multiplier = true;
  if (config.flag("use_bidirectional_attention", false)) {
    config.refuse("use_bidirectional_attention", "is true, and this model attends to earlier tokens alone.");
  }
}

double softcap(const ConfigJson& config, const std::string& key, double otherwise) {
  return config.is_null(key) ? 0 : config.positive(key, otherwise);
}

void read_gemma2_or_3(const ConfigJson& config, DecoderShape& shape) {
  read_any_gemma(config, shape);
  shape.norm_place = NormPlace::kAround;
  shape.attention_scale = std::pow(config.positive("query_pre_attn_scalar", 256), -0.5);
}

void read_gemma2(const ConfigJson& config, DecoderShape& shape) {
  read_gemma2_or_3(config, shape);
  shape.explicit_attention = true;
  shape.attention_softcap = softcap(config, "attn_logit_softcapping", 50);
  shape.logits_softcap = softcap(config, "final_logit_softcapping", 30);
  read_windows(config, shape, window_of(config, 4096), [](std::size_t i) { return i % 2 == 0; });
}

void read_gemma3(const ConfigJson& config, DecoderShape& shape) {
  read_gemma2_or_3(config, shape);
  shape.head_norm = HeadNorm::kEachHead;
  shape.logits_softcap = softcap(config, "final_logit_softcapping", 0);
  if (config.has("attn_logit_softcapping")) {
    config.refuse("attn_logit_softcapping", "is given, and attention of gemma3_text has no such cap. Remove it.");
  }
  const auto pattern = static_cast<std::size_t>(config.count("sliding_window_pattern", 6));
  read_windows(config, shape, window_of(config, 4096), [&](std::size_t i) { return (i + 1) % pattern != 0; });
}

void read_phi3(const ConfigJson& config, DecoderShape& shape) {
  shape.fused_projections = true;
  read_one_window(config, shape, 0);
}

void read_any_olmo(const ConfigJson& config, DecoderShape& shape) {
  read_attention_bias(config, shape);
  shape.rotary_in_fp32 = true;
}

void read_olmo(const ConfigJson& config, DecoderShape& shape) {
  read_any_olmo(config, shape);
  shape.norm = NormKind::kPlain;
  shape.norm_eps = 1e-5;
  shape.clip_qkv = config.positive("clip_qkv", 0);
}

void read_olmo2(const ConfigJson& config, DecoderShape& shape) {
  read_any_olmo(config, shape);
  shape.norm = NormKind::kRmsCast;
  shape.norm_place = NormPlace::kAfter;
  shape.head_norm = HeadNorm::kAllHeads;
}

void read_stablelm(const ConfigJson& config, DecoderShape& shape) {
  shape.qkv_bias = config.flag("use_qkv_bias", false);
  shape.norm = NormKind::kLayerNorm;
  shape.norm_eps = config.positive("layer_norm_eps", 1e-5);
  for (const char* key : {"qk_layernorm", "use_parallel_residual"}) {
    if (config.flag(key, false)) config.refuse(key, "is true, and this plugin computes stablelm without it.");
  }
}

void read_granite(const ConfigJson& config, DecoderShape& shape) {
  read_llama(config, shape);
  shape.embedding_multiplier = config.number("embedding_multiplier", 1);
  shape.residual_multiplier = config.number("residual_multiplier", 1);
  shape.attention_scale = config.number("attention_multiplier", 1);
  shape.logits_divisor = config.positive("logits_scaling", 1);
}

constexpr Family kFamilies[] = {
    {"gemma", &read_any_gemma, 16, 256, 0, true},
    {"gemma2", &read_gemma2, 4, 256, 0, true},
    {"gemma3_text", &read_gemma3, 4, 256, 0, true},
    {"granite", &read_granite},
    {"llama", &read_llama},
    {"mistral", &read_mistral, 8},
    {"olmo", &read_olmo, 0, 0, 1},
    {"olmo2", &read_olmo2, 0, 0, 1, false, 1e-5},
    {"phi3", &read_phi3, 0, 0, 32000, false, 1e-5},
    {"qwen2", &read_qwen2, 32},
    {"qwen3", &read_qwen3, 32, 128},
    {"smollm3", &read_smollm3, 4, 0, 128004, true},
    {"stablelm", &read_stablelm, 32},
};

const Family& family_of(const ConfigJson& config) {
  std::string known;
  for (const Family& family : kFamilies) known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  if (!config.has("model_type")) config.refuse("model_type", "is missing. Known are " + known + ".");
  const std::string type = config.text("model_type", "");
  const auto family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& one) { return one.model_type == type; });
  if (family == std::end(kFamilies))
    config.refuse("model_type", "'" + type + "' is not known. Known are " + known + ".");
  return *family;
}

/// Refuses what would make the model another one than its model_type says.
void refuse_other_models(const ConfigJson& config) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"}) {
    if (config.has(key)) config.refuse(key, "is given: the model is a mixture of experts, and this plugin has none.");
  }
  if (config.has("quantization_config")) {
    config.refuse("quantization_config",
                  "is given: the weights are quantised. Use a folder of the model in fp32, bf16 or fp16.");
  }
  for (const char* key : {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"}) {
    if (config.number(key, 0) != 0) config.refuse(key, "must be 0: this plugin computes without dropout.");
  }
}

void read_heads(const ConfigJson& config, const Family& family, DecoderShape& shape) {
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  shape.heads = config.count("num_attention_heads");
  shape.kv_heads = config.is_null("num_key_value_heads")
                       ? shape.heads
                       : config.count("num_key_value_heads", family.kv_heads == 0 ? shape.heads : family.kv_heads);
  if (shape.heads % shape.kv_heads != 0) {
    config.refuse("num_key_value_heads",
                  text(shape.kv_heads) + " does not divide num_attention_heads, " + text(shape.heads) + ".");
  }
  const bool derived = !config.has("head_dim") && family.head_dim == 0;
  if (derived && shape.hidden_size % shape.heads != 0) {
    config.refuse("num_attention_heads", text(shape.heads) + " does not divide hidden_size, " +
                                             text(shape.hidden_size) + ", and head_dim is not given.");
  }
  shape.head_dim = derived ? shape.hidden_size / shape.heads : config.count("head_dim", family.head_dim);
  shape.attention_scale = std::pow(static_cast<double>(shape.head_dim), -0.5);
}

std::int64_t padding_of(const ConfigJson& config, const Family& family, std::int64_t vocab_size) {
  if (config.is_null("pad_token_id")) return -1;
  if (!config.has("pad_token_id")) return family.padding < vocab_size ? family.padding : -1;
  const double id = config.number("pad_token_id");
  if (id != std::floor(id) || id < 0 || id >= static_cast<double>(vocab_size)) {
    config.refuse("pad_token_id", "must be null or an id of the vocabulary, 0 to " + std::to_string(vocab_size - 1) +
                                      ", got " + config.text("pad_token_id", "") + ".");
  }
  return static_cast<std::int64_t>(id);
}

Activation activation_of(const ConfigJson& config, const std::string& model_type) {
  const bool gemma = model_type.starts_with("gemma");
  const std::string key = gemma && model_type != "gemma" ? "hidden_activation" : "hidden_act";
  const std::string name = config.text(key, gemma ? "gelu_pytorch_tanh" : "silu");
  if (name == "silu") return Activation::kSilu;
  // Gemma's first files say gelu for its tanh form.
  if (name == "gelu_pytorch_tanh" || (name == "gelu" && model_type == "gemma")) return Activation::kGeluTanh;
  if (name == "gelu") return Activation::kGelu;
  config.refuse(key, "'" + name + "' is not known. Known are silu, gelu and gelu_pytorch_tanh.");
}

}  // namespace

DecoderShape DecoderShape::from(const ConfigJson& config) {
  const Family& family = family_of(config);
  refuse_other_models(config);
  DecoderShape shape;
  shape.model_type = family.model_type;
  shape.layers = config.count("num_hidden_layers");
  if (shape.layers > kMostLayers) {
    config.refuse("num_hidden_layers",
                  "must be at most " + std::to_string(kMostLayers) + ", got " + std::to_string(shape.layers) + ".");
  }
  shape.hidden_size = config.count("hidden_size");
  shape.intermediate_size = config.count("intermediate_size");
  shape.vocab_size = config.count("vocab_size");
  shape.max_positions = config.count("max_position_embeddings");
  read_heads(config, family, shape);
  shape.padding = padding_of(config, family, shape.vocab_size);
  shape.tied_head = config.flag("tie_word_embeddings", family.tied_head);
  shape.initializer_range = config.positive("initializer_range", 0.02);
  shape.norm_eps = config.positive("rms_norm_eps", family.norm_eps);
  shape.activation = activation_of(config, shape.model_type);
  shape.windowed.assign(static_cast<std::size_t>(shape.layers), false);
  shape.rotary.assign(static_cast<std::size_t>(shape.layers), true);
  family.read(config, shape);
  return shape;
}

}  // namespace capstan::models

// A GGUF file's metadata as a config.json of transformers.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "core/pretrained/gguf_architecture.hpp"
#include "core/pretrained/gguf_model.hpp"
#include "core/pretrained/rotary_scaling.hpp"

namespace capstan {
namespace {

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
  GgufReading(const GgufHeader& header, std::span<const std::byte* const> files, const std::string& where)
      : header_(header), files_(files), where_(where) {}

  Json config() {
    const GgufEntry* entry = header_.find("general.architecture");
    const std::optional<std::string_view> name = entry ? entry->text() : std::nullopt;
    if (!name) fail("its metadata has no general.architecture, which tells what model it is.");
    const std::span<const GgufArchitecture> known = gguf_architectures();
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const GgufArchitecture& one) { return one.name == *name; });
    if (found == known.end()) {
      fail("its architecture is '" + std::string(name->substr(0, 100)) + "', and these are known: " +
           known_gguf_architectures() + ". Take the folder of transformers of that model, with --model hf:FOLDER.");
    }
    architecture_ = &*found;
    refuse_experts();
    Json config = Json::object();
    config["architectures"] = Json(Json::Array{Json(architecture_->class_name)});
    config["model_type"] = architecture_->model_type;
    for (const auto& [key, there] : kGgufCounts) config[key] = count(there);
    add_head_size(config);
    config["vocab_size"] = vocabulary();
    config["hidden_act"] = architecture_->activation;
    if (architecture_->adds_one) config["hidden_activation"] = architecture_->activation;
    add_norm_epsilon(config);
    config["tie_word_embeddings"] = header_.tensor("output.weight") == nullptr;
    add_biases(config);
    add_rotation(config);
    add_numbers(config);
    if (architecture_->is("gemma2")) add_gemma2(config);
    if (architecture_->is("gemma3")) add_gemma3(config);
    if (architecture_->is("stablelm")) add_stablelm(config);
    if (architecture_->is("phi3")) add_window(config);
    for (const auto& [key, there] : kGgufTokens) {
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
    if (!architecture_->is("phi3") && !architecture_->is("stablelm")) {
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
    if (!architecture_->has_biases) return;
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
    std::memcpy(divisors.data(), files_[tensor.part] + tensor.begin, divisors.size() * sizeof(float));
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

  void add_norm_epsilon(Json& config) const {
    if (!architecture_->layer_norm) {
      config["rms_norm_eps"] = number("attention.layer_norm_rms_epsilon");
      return;
    }
    const double epsilon = number("attention.layer_norm_epsilon");
    if (!architecture_->is("olmo")) {
      config["layer_norm_eps"] = epsilon;
    } else if (epsilon != 1e-5) {
      fail("its " + key("attention.layer_norm_epsilon") + " is not 1e-05, which transformers has for this model.");
    }
  }

  void add_numbers(Json& config) const {
    for (const GgufNumber& one : kGgufNumbers) {
      if (!architecture_->is(one.architecture)) continue;
      const GgufEntry* entry = find(one.there);
      // What Gemma 2 may not lack is not a number to guess.
      if (entry == nullptr && architecture_->is("gemma2")) number(one.there);
      if (entry != nullptr) config[one.key] = checked_number(one.there, *entry);
    }
  }

  /// llama.cpp's rule: the models of 27 billion parameters scale by the width of all heads.
  void add_attention_scale(Json& config, std::int64_t layers_of_27b) const {
    const bool is_27b = config.at("num_hidden_layers").as_integer() == layers_of_27b;
    config["query_pre_attn_scalar"] =
        is_27b ? config.at("hidden_size").as_integer() / config.at("num_attention_heads").as_integer()
               : config.at("head_dim").as_integer();
  }

  void add_gemma2(Json& config) const {
    config["sliding_window"] = count("attention.sliding_window");
    add_attention_scale(config, 46);
  }

  void add_gemma3(Json& config) const {
    add_attention_scale(config, 62);
    const GgufEntry* window = find("attention.sliding_window");
    const bool has_window = window != nullptr && window->integer().value_or(1) != 0;
    if (has_window) config["sliding_window"] = checked("attention.sliding_window", *window);
    const GgufEntry* told = find("attention.sliding_window_pattern");
    const std::int64_t period = told == nullptr ? 6 : checked("attention.sliding_window_pattern", *told);
    Json::Array kinds;
    for (std::int64_t i = 0; i < config.at("num_hidden_layers").as_integer(); ++i) {
      if (kinds.size() > 10'000) fail("it has more than 10,000 layers.");
      kinds.push_back(!has_window || (i + 1) % period == 0 ? "full_attention" : "sliding_attention");
    }
    config["layer_types"] = std::move(kinds);
    const GgufEntry* local = find("rope.freq_base_swa");
    config["rope_local_base_freq"] = local == nullptr ? 10000.0 : checked_number("rope.freq_base_swa", *local);
  }

  void add_stablelm(Json& config) const {
    config["use_qkv_bias"] = header_.tensor("blk.0.attn_q.bias") != nullptr;
    config["qk_layernorm"] = header_.tensor("blk.0.attn_q_norm.weight") != nullptr;
    config["use_parallel_residual"] = header_.tensor("blk.0.ffn_norm.weight") == nullptr;
    if (config.find("partial_rotary_factor") == nullptr) config["partial_rotary_factor"] = 1.0;
  }

  void add_window(Json& config) const {
    const GgufEntry* window = find("attention.sliding_window");
    if (window != nullptr && window->integer().value_or(1) != 0) {
      config["sliding_window"] = checked("attention.sliding_window", *window);
    }
  }

  const GgufHeader& header_;
  std::span<const std::byte* const> files_;
  const std::string& where_;
  const GgufArchitecture* architecture_ = nullptr;
};

}  // namespace

Json config_of_gguf(const GgufHeader& header, std::span<const std::byte* const> files, const std::string& where) {
  return GgufReading(header, files, where).config();
}

}  // namespace capstan

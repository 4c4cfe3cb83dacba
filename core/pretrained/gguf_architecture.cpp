#include "core/pretrained/gguf_architecture.hpp"

#include <algorithm>
#include <iterator>

namespace capstan {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .model_type = "llama",
     .also = "mistral",
     .class_name = "LlamaForCausalLM",
     .activation = "silu",
     .pairs_rows = true,
     .has_biases = true},
    {.name = "qwen2",
     .model_type = "qwen2",
     .also = nullptr,
     .class_name = "Qwen2ForCausalLM",
     .activation = "silu",
     .has_head_size = false},
    {.name = "qwen3", .model_type = "qwen3", .also = nullptr, .class_name = "Qwen3ForCausalLM", .activation = "silu"},
    {.name = "gemma",
     .model_type = "gemma",
     .also = nullptr,
     .class_name = "GemmaForCausalLM",
     .activation = "gelu_pytorch_tanh",
     .adds_one = true,
     .head_size = 256},
    {.name = "gemma2",
     .model_type = "gemma2",
     .also = nullptr,
     .class_name = "Gemma2ForCausalLM",
     .activation = "gelu_pytorch_tanh",
     .adds_one = true,
     .around = true,
     .head_size = 256},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .also = nullptr,
     .class_name = "Gemma3ForCausalLM",
     .activation = "gelu_pytorch_tanh",
     .adds_one = true,
     .around = true,
     .head_size = 256},
    {.name = "phi3",
     .model_type = "phi3",
     .also = nullptr,
     .class_name = "Phi3ForCausalLM",
     .activation = "silu",
     .has_head_size = false},
    {.name = "olmo",
     .model_type = "olmo",
     .also = nullptr,
     .class_name = "OlmoForCausalLM",
     .activation = "silu",
     .pairs_rows = true,
     .has_head_size = false,
     .layer_norm = true},
    {.name = "olmo2",
     .model_type = "olmo2",
     .also = nullptr,
     .class_name = "Olmo2ForCausalLM",
     .activation = "silu",
     .has_head_size = false,
     .around = true,
     .needs_head = true},
    {.name = "stablelm",
     .model_type = "stablelm",
     .also = nullptr,
     .class_name = "StableLmForCausalLM",
     .activation = "silu",
     .has_head_size = false,
     .layer_norm = true,
     .needs_head = true},
    {.name = "granite",
     .model_type = "granite",
     .also = nullptr,
     .class_name = "GraniteForCausalLM",
     .activation = "silu",
     .pairs_rows = true,
     .has_head_size = false,
     .has_biases = true},
    {.name = "smollm3",
     .model_type = "smollm3",
     .also = nullptr,
     .class_name = "SmolLM3ForCausalLM",
     .activation = "silu",
     .pairs_rows = true,
     .has_head_size = false},
};

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return kArchitectures; }

std::string known_gguf_architectures() {
  std::string names;
  for (const GgufArchitecture& one : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(one.name);
  return names;
}

const GgufArchitecture* gguf_architecture_of(const Json& config) {
  const Json* type = config.find("model_type");
  if (type == nullptr || !type->is_string()) return nullptr;
  const auto takes = [&](const GgufArchitecture& one) {
    return type->as_string() == one.model_type || (one.also != nullptr && type->as_string() == one.also);
  };
  const auto found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures), takes);
  return found == std::end(kArchitectures) ? nullptr : found;
}

std::int64_t heads_of(const PretrainedKeys& keys, bool of_keys) {
  const std::int64_t heads = keys.count("num_attention_heads");
  return of_keys ? keys.count("num_key_value_heads", heads) : heads;
}

std::int64_t head_size_of(const PretrainedKeys& keys, const GgufArchitecture& architecture) {
  const std::int64_t derived = keys.count("hidden_size") / keys.count("num_attention_heads");
  return keys.count("head_dim", architecture.head_size > 0 ? architecture.head_size : derived);
}

}  // namespace capstan

#include "core/pretrained/gguf_architecture.hpp"

#include <algorithm>
#include <iterator>

namespace capstan {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "llama", "mistral", "LlamaForCausalLM", "silu", true, false, true},
    {"qwen2", "qwen2", nullptr, "Qwen2ForCausalLM", "silu", false, false, false},
    {"qwen3", "qwen3", nullptr, "Qwen3ForCausalLM", "silu", false, false, true},
    {"gemma2", "gemma2", nullptr, "Gemma2ForCausalLM", "gelu_pytorch_tanh", false, true, true},
    {"phi3", "phi3", nullptr, "Phi3ForCausalLM", "silu", false, false, false},
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

std::int64_t head_size_of(const PretrainedKeys& keys) {
  const std::int64_t heads = keys.count("num_attention_heads");
  return keys.count("head_dim", keys.count("hidden_size") / heads);
}

}  // namespace capstan

// Where llama.cpp has the weights of transformers' models.

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/pretrained/gguf_architecture.hpp"
#include "core/pretrained/gguf_model.hpp"

namespace capstan {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

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

}  // namespace

std::optional<GgufPlace> gguf_place(const Json& config, std::string_view name) {
  const GgufArchitecture* architecture = gguf_architecture_of(config);
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
    there = architecture->around ? "post_attention_norm" : "ffn_norm";
  }
  if (!there) return std::nullopt;
  place.name = layer->first + std::string(*there) + std::string(end);
  if (architecture->pairs_rows && (*there == "attn_q" || *there == "attn_k")) {
    place.rotary_heads = heads_of(PretrainedKeys(config), *there == "attn_k");
  }
  return place;
}

}  // namespace capstan

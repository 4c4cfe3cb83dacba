// How transformers' OPT and llama.cpp's gpt2, which compute what this model does, call its weights.

#include <string>

#include "shape.hpp"

namespace capstan::models {
namespace {

/// Items of a list as JSON, one behind the other.
class Tensors {
 public:
  void add(const std::string& parameter, const std::string& name, const std::string& more = "") {
    text_ += std::string(text_.empty() ? "" : ", ") + R"({"parameter": ")" + parameter + R"(", "name": ")" + name +
             "\"" + more + "}";
  }
  void add_both(const std::string& parameter, const std::string& name, const std::string& more = "") {
    add(parameter + ".weight", name + ".weight", more);
    add(parameter + ".bias", name + ".bias", more);
  }
  std::string text() const { return "[" + text_ + "]"; }

 private:
  std::string text_;
};

std::string member(const char* key, std::int64_t value) {
  return std::string("\"") + key + "\": " + std::to_string(value) + ", ";
}

}  // namespace

std::string opt_names(const GptShape& shape) {
  if (const std::string why = shape.not_held_by("OPT"); !why.empty()) return R"({"refused": ")" + why + "\"}";
  const std::string config =
      R"({"architectures": ["OPTForCausalLM"], "model_type": "opt", )" + member("num_hidden_layers", shape.layers) +
      member("hidden_size", shape.d) + member("word_embed_proj_dim", shape.d) + member("ffn_dim", shape.ff.front()) +
      member("num_attention_heads", shape.heads) + member("max_position_embeddings", shape.seq) +
      member("vocab_size", shape.vocab) +
      R"("activation_function": "gelu_pytorch_tanh", "do_layer_norm_before": true, "enable_bias": true, )"
      R"("layer_norm_elementwise_affine": true, "dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0, )"
      R"("bos_token_id": null, "eos_token_id": null, "pad_token_id": null, "tie_word_embeddings": )" +
      (shape.tied_head ? "true" : "false") + "}";
  const std::string decoder = "model.decoder.";
  Tensors tensors;
  // transformers opens no embeddings as codes: it wants to give them initial values.
  tensors.add("tok_emb.weight", decoder + "embed_tokens.weight", R"(, "as_values": true)");
  // OPT counts positions from 2 on.
  tensors.add("pos_emb.weight", decoder + "embed_positions.weight", R"(, "as_values": true, "zero_rows": 2)");
  tensors.add_both("ln_f", decoder + "final_layer_norm");
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const std::string ours = "blocks." + std::to_string(i), theirs = decoder + "layers." + std::to_string(i);
    tensors.add_both(ours + ".ln1", theirs + ".self_attn_layer_norm");
    std::int64_t first = 0;
    for (const char* part : {"q", "k", "v"}) {
      tensors.add_both(ours + ".attn.qkv", theirs + ".self_attn." + part + "_proj",
                       ", \"rows\": [" + std::to_string(first) + ", " + std::to_string(shape.d) + "]");
      first += shape.d;
    }
    tensors.add_both(ours + ".attn.proj", theirs + ".self_attn.out_proj");
    tensors.add_both(ours + ".ln2", theirs + ".final_layer_norm");
    tensors.add_both(ours + ".mlp.fc", theirs + ".fc1");
    tensors.add_both(ours + ".mlp.proj", theirs + ".fc2");
  }
  if (!shape.tied_head) tensors.add("head.weight", "lm_head.weight");
  return "{\"config\": " + config + ", \"tensors\": " + tensors.text() + "}";
}

std::string gguf_names(const GptShape& shape) {
  if (const std::string why = shape.not_held_by("llama.cpp's gpt2"); !why.empty()) {
    return R"({"refused": ")" + why + "\"}";
  }
  const std::string metadata = R"({"general.architecture": "gpt2", )" + member("gpt2.block_count", shape.layers) +
                               member("gpt2.embedding_length", shape.d) +
                               member("gpt2.feed_forward_length", shape.ff.front()) +
                               member("gpt2.attention.head_count", shape.heads) +
                               member("gpt2.context_length", shape.seq) + member("gpt2.vocab_size", shape.vocab) +
                               R"("gpt2.attention.layer_norm_epsilon": 1e-05, "tokenizer.ggml.model": "none"})";
  Tensors tensors;
  tensors.add("tok_emb.weight", "token_embd.weight");
  tensors.add("pos_emb.weight", "position_embd.weight");
  tensors.add_both("ln_f", "output_norm");
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const std::string ours = "blocks." + std::to_string(i), theirs = "blk." + std::to_string(i);
    tensors.add_both(ours + ".ln1", theirs + ".attn_norm");
    tensors.add_both(ours + ".attn.qkv", theirs + ".attn_qkv");
    tensors.add_both(ours + ".attn.proj", theirs + ".attn_output");
    tensors.add_both(ours + ".ln2", theirs + ".ffn_norm");
    tensors.add_both(ours + ".mlp.fc", theirs + ".ffn_up");
    tensors.add_both(ours + ".mlp.proj", theirs + ".ffn_down");
  }
  if (!shape.tied_head) tensors.add("head.weight", "output.weight");
  return "{\"metadata\": " + metadata + ", \"tensors\": " + tensors.text() + "}";
}

}  // namespace capstan::models

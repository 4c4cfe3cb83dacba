#include <string>

#include "shape.hpp"

namespace capstan::models {
namespace {

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string tensor(const std::string& parameter, const std::string& name, const std::string& more = "") {
  return "{\"parameter\": " + quoted(parameter) + ", \"name\": " + quoted(name) + more + "}, ";
}

/// GPT-2's linear layers are Conv1D, whose weights are [in, out].
std::string linear(const std::string& parameter, const std::string& name) {
  return tensor(parameter + ".weight", name + ".weight", ", \"transposed\": true") +
         tensor(parameter + ".bias", name + ".bias");
}

std::string layer_norm(const std::string& parameter, const std::string& name) {
  return tensor(parameter + ".weight", name + ".weight") + tensor(parameter + ".bias", name + ".bias");
}

std::string number(const char* key, std::int64_t value) { return quoted(key) + ": " + std::to_string(value) + ", "; }

}  // namespace

std::string hf_names(const GptShape& shape) {
  if (const std::string why = shape.not_held_by("GPT-2"); !why.empty()) return "{\"refused\": " + quoted(why) + "}";
  const std::string tied = shape.tied_head ? "true" : "false";
  const std::string config =
      "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", " + number("n_layer", shape.layers) +
      number("n_embd", shape.d) + number("n_head", shape.heads) + number("n_inner", shape.ff.front()) +
      number("n_positions", shape.seq) + number("n_ctx", shape.seq) + number("vocab_size", shape.vocab) +
      "\"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-05, "
      "\"scale_attn_weights\": true, \"scale_attn_by_inverse_layer_idx\": false, "
      "\"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, \"attn_pdrop\": 0.0, "
      "\"bos_token_id\": null, \"eos_token_id\": null, \"tie_word_embeddings\": " +
      tied + "}";
  std::string agree =
      "\"model_type\", \"n_layer\", \"n_embd\", \"n_head\", \"n_positions\", \"vocab_size\", "
      "\"activation_function\", \"layer_norm_epsilon\", \"scale_attn_weights\", \"scale_attn_by_inverse_layer_idx\"";
  // An untied head can begin as the copy of a tied one, not the other way round.
  if (shape.tied_head) agree += ", \"tie_word_embeddings\"";

  std::string tensors = tensor("tok_emb.weight", "transformer.wte.weight") +
                        tensor("pos_emb.weight", "transformer.wpe.weight") + layer_norm("ln_f", "transformer.ln_f");
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const std::string ours = "blocks." + std::to_string(i), theirs = "transformer.h." + std::to_string(i);
    tensors += layer_norm(ours + ".ln1", theirs + ".ln_1") + linear(ours + ".attn.qkv", theirs + ".attn.c_attn") +
               linear(ours + ".attn.proj", theirs + ".attn.c_proj") + layer_norm(ours + ".ln2", theirs + ".ln_2") +
               linear(ours + ".mlp.fc", theirs + ".mlp.c_fc") + linear(ours + ".mlp.proj", theirs + ".mlp.c_proj");
  }
  if (!shape.tied_head) {
    tensors += tensor("head.weight", "lm_head.weight", ", \"or\": \"transformer.wte.weight\"");
  }
  tensors.resize(tensors.size() - 2);
  // Older files hold the causal masks; a tied head may be there as a copy.
  const std::string ignored =
      std::string("\".attn.bias\", \".attn.masked_bias\"") + (shape.tied_head ? ", \"lm_head.weight\"" : "");
  return "{\"config\": " + config + ", \"must_agree\": [" + agree +
         "], \"prefix\": \"transformer.\", \"layers_key\": \"n_layer\", \"tensors\": [" + tensors +
         "], \"ignored\": [" + ignored + "]}";
}

}  // namespace capstan::models

#include "gpt.hpp"

#include <map>

#include "../tokens.hpp"
#include "init.hpp"

namespace capstan::models {
namespace {

const std::map<std::string, GptShape, std::less<>> kSizes = {
    {"tiny", {4, 128, 4, 128, 256, false}},     {"mini", {6, 192, 6, 256, 256, false}},
    {"small", {6, 384, 6, 256, 256, false}},    {"124m", {12, 768, 12, 1024, 256, false}},
    {"1.5b", {48, 1600, 25, 1024, 256, false}}, {"7b", {32, 4096, 32, 2048, 256, false}},
};

torch::nn::LayerNorm layer_norm(std::int64_t d) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({d}).eps(1e-5));
}

}  // namespace

GptShape GptShape::from(const sdk::Params& params) {
  const std::string size = params.text("size");
  const auto named = kSizes.find(size);
  params.require(named != kSizes.end(), "size", "there is no size '" + size + "'");
  GptShape shape = named->second;
  for (const auto& [key, field] :
       std::initializer_list<std::pair<const char*, std::int64_t*>>{{"layers", &shape.layers},
                                                                    {"d", &shape.d},
                                                                    {"heads", &shape.heads},
                                                                    {"seq", &shape.seq},
                                                                    {"vocab", &shape.vocab}}) {
    if (params.has(key)) *field = params.integer(key);
  }
  shape.tied_head = params.has("tied_head") && params.boolean("tied_head");
  params.require(shape.d % shape.heads == 0, "heads",
                 std::to_string(shape.heads) + " heads do not divide d " + std::to_string(shape.d) +
                     ". Choose d as a multiple of heads.");
  return shape;
}

GptAttention::GptAttention(const GptShape& shape)
    : heads_(shape.heads),
      qkv_(register_module("qkv", torch::nn::Linear(shape.d, 3 * shape.d))),
      proj_(register_module("proj", torch::nn::Linear(shape.d, shape.d))) {}

at::Tensor GptAttention::forward(const at::Tensor& hidden) {
  const auto batch = hidden.size(0), time = hidden.size(1), d = hidden.size(2);
  const auto parts = qkv_(hidden).view({batch, time, 3, heads_, d / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
  const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
  return proj_(mixed.transpose(1, 2).reshape({batch, time, d}));
}

GptMlp::GptMlp(const GptShape& shape)
    : fc_(register_module("fc", torch::nn::Linear(shape.d, 4 * shape.d))),
      proj_(register_module("proj", torch::nn::Linear(4 * shape.d, shape.d))) {}

at::Tensor GptMlp::forward(const at::Tensor& hidden) { return proj_(at::gelu(fc_(hidden), "tanh")); }

GptBlock::GptBlock(const GptShape& shape)
    : ln1_(register_module("ln1", layer_norm(shape.d))),
      attn_(register_module("attn", std::make_shared<GptAttention>(shape))),
      ln2_(register_module("ln2", layer_norm(shape.d))),
      mlp_(register_module("mlp", std::make_shared<GptMlp>(shape))) {}

at::Tensor GptBlock::forward(const at::Tensor& hidden) {
  const auto attended = hidden + attn_->forward(ln1_(hidden));
  return attended + mlp_->forward(ln2_(attended));
}

Gpt::Gpt(sdk::Host, const sdk::Params& params)
    : shape_(GptShape::from(params)),
      tok_emb_(register_module("tok_emb", torch::nn::Embedding(shape_.vocab, shape_.d))),
      pos_emb_(register_module("pos_emb", torch::nn::Embedding(shape_.seq, shape_.d))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      ln_f_(register_module("ln_f", layer_norm(shape_.d))) {
  if (!shape_.tied_head) {
    head_ = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(shape_.d, shape_.vocab).bias(false)));
  }
  for (std::int64_t i = 0; i < shape_.layers; ++i) blocks_->push_back(std::make_shared<GptBlock>(shape_));
  if (params.text("init") == "formula") {
    initialize_formula(named_parameters(), shape_.layers, static_cast<std::uint64_t>(params.integer("init_seed")));
  } else {
    initialize_normal(named_parameters(), shape_.layers);
  }
}

void Gpt::check(const sdk::BatchView& batch) const { check_tokens(batch, shape_.seq, shape_.vocab); }

at::Tensor Gpt::forward(const sdk::BatchView& batch) {
  const Tokens tokens = read_tokens(batch, shape_.seq);
  at::Tensor hidden = tok_emb_(tokens.inputs) + pos_emb_->weight.narrow(0, 0, tokens.inputs.size(1));
  for (std::size_t i = 0; i < blocks_->size(); ++i) {
    hidden = layer("blocks." + std::to_string(i), hidden,
                   [&](const at::Tensor& inner) { return blocks_->at<GptBlock>(i).forward(inner); });
  }
  const at::Tensor& head = shape_.tied_head ? tok_emb_->weight : head_->weight;
  return mean_cross_entropy(at::linear(ln_f_(hidden), head), tokens.labels);
}

std::string Gpt::describe() const {
  return "{\"sequence_length\": " + std::to_string(shape_.seq) + ", \"hidden_size\": " + std::to_string(shape_.d) +
         ", \"vocab_size\": " + std::to_string(shape_.vocab) + ", \"layers\": " + std::to_string(shape_.layers) +
         ", \"heads\": " + std::to_string(shape_.heads) + ", \"hf\": " + hf_names(shape_) +
         ", \"hf_linear\": " + opt_names(shape_) + ", \"gguf\": " + gguf_names(shape_) + "}";
}

}  // namespace capstan::models

CAPSTAN_PLUGIN(&capstan::sdk::model<capstan::models::Gpt, "gpt">)

#include "mlp.hpp"

#include "../tokens.hpp"

namespace capstan::models {

Mlp::Mlp(sdk::Host, const sdk::Params& params)
    : context_(params.integer("context")),
      d_(params.integer("d")),
      width_(params.integer("hidden")),
      layers_(params.integer("layers")),
      seq_(params.integer("seq")),
      vocab_(params.integer("vocab")),
      tok_emb_(register_module("tok_emb", torch::nn::Embedding(vocab_ + 1, d_))),
      hidden_(register_module("hidden", torch::nn::ModuleList())),
      head_(register_module("head", torch::nn::Linear(width_, vocab_))) {
  for (std::int64_t i = 0; i < layers_; ++i) {
    hidden_->push_back(torch::nn::Linear(i == 0 ? context_ * d_ : width_, width_));
  }
}

void Mlp::check(const sdk::BatchView& batch) const { check_tokens(batch, seq_, vocab_); }

at::Tensor Mlp::forward(const sdk::BatchView& batch) {
  const Tokens tokens = read_tokens(batch, seq_);
  // [batch, time, context]: what stands at each position and before it; `vocab` stands before the start.
  const at::Tensor windows = at::constant_pad_nd(tokens.inputs, {context_ - 1, 0}, vocab_).unfold(1, context_, 1);
  at::Tensor hidden = tok_emb_(windows).flatten(2);
  for (std::size_t i = 0; i < hidden_->size(); ++i) {
    hidden = layer("hidden." + std::to_string(i), hidden, [&](const at::Tensor& inner) {
      return hidden_->at<torch::nn::LinearImpl>(i).forward(inner).tanh();
    });
  }
  return mean_cross_entropy(head_(hidden), tokens.labels);
}

std::string Mlp::describe() const {
  return "{\"sequence_length\": " + std::to_string(seq_) + ", \"hidden_size\": " + std::to_string(width_) +
         ", \"vocab_size\": " + std::to_string(vocab_) + ", \"layers\": " + std::to_string(layers_) + "}";
}

}  // namespace capstan::models

CAPSTAN_PLUGIN(&capstan::sdk::model<capstan::models::Mlp, "mlp">)

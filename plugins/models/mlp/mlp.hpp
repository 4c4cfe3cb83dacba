#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>

#include "capstan/sdk/model.hpp"

namespace capstan::models {

/// The neural probabilistic language model of Bengio et al. (2003), over bytes: the embeddings of the last `context`
/// tokens, side by side, through tanh layers to the next token's logits. Positions before the start have an embedding
/// of their own, the last row of tok_emb. Small and fast. Hidden layer i is the layer "hidden.i".
class Mlp : public torch::nn::Module {
 public:
  Mlp(sdk::Host host, const sdk::Params& params);
  void check(const sdk::BatchView& batch) const;
  at::Tensor forward(const sdk::BatchView& batch);
  std::string describe() const;

 private:
  std::int64_t context_, d_, width_, layers_, seq_, vocab_;
  torch::nn::Embedding tok_emb_;
  torch::nn::ModuleList hidden_;
  torch::nn::Linear head_;
};

}  // namespace capstan::models

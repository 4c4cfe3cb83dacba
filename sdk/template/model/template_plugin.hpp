#pragma once

#include <torch/torch.h>

/// An ordinary module: forward gives the mean loss of the batch.
class TemplatePluginModule : public torch::nn::Module {
 public:
  explicit TemplatePluginModule(std::int64_t width)
      : embedding(register_module("embedding", torch::nn::Embedding(256, width))),
        recurrent(register_module("recurrent", torch::nn::GRU(torch::nn::GRUOptions(width, width).batch_first(true)))),
        head(register_module("head", torch::nn::Linear(width, 256))) {}

  /// Both of shape [samples, length]; labels[i][t] is the byte that follows input_ids[i][t].
  at::Tensor forward(const at::Tensor& input_ids, const at::Tensor& labels) {
    const at::Tensor hidden = std::get<0>(recurrent->forward(embedding->forward(input_ids)));
    return torch::cross_entropy_loss(head->forward(hidden).flatten(0, 1), labels.flatten());
  }

  torch::nn::Embedding embedding;
  torch::nn::GRU recurrent;
  torch::nn::Linear head;
};

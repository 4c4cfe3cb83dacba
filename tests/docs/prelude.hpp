// Names that the C++ code of the documentation uses and leaves to its reader.
#pragma once

#include <torch/torch.h>

#include <capstan/capstan.hpp>
#include <capstan/sdk/model.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sdk = capstan::sdk;

struct Net : torch::nn::Module {
  explicit Net(int width = 48, int depth = 4096);
  Net(const sdk::Host&, const sdk::Params&);
  at::Tensor forward(const at::Tensor& input_ids, const at::Tensor& labels);
  at::Tensor forward(const at::Tensor& image);
  at::Tensor logits(const at::Tensor& input_ids);
};

struct Block : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask);
};

capstan::Batch next_micro_batch();
capstan::Batch batch_of(std::span<const std::int64_t> numbers);
at::Tensor my_loss(const at::Tensor& logits);

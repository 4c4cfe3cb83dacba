#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "shape.hpp"

namespace capstan::models {

/// A norm over the last dimension, of `width` elements: RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) or
/// LayerNorm. Computes in fp32 and gives the dtype of its input; kinds differ in where they round, see NormKind.
class DecoderNorm : public torch::nn::Module {
 public:
  DecoderNorm(std::int64_t width, NormKind kind, double eps);
  at::Tensor forward(const at::Tensor& x) const;
  /// The same of the few rows of a step of generation, where fewer operators count for more than equal bits.
  at::Tensor decode(const at::Tensor& x) const;

 private:
  std::int64_t width_;
  NormKind kind_;
  double eps_;
  at::Tensor weight_, bias_;  // undefined where the kind has none
};

}  // namespace capstan::models

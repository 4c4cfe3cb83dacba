#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace torch::autograd {
struct Node;
}

namespace capstan::random_ltd {

/// Which of the first two dimensions of hidden states counts the samples.
enum class Order { kBatchSeq, kSeqBatch };

/// The tokens of hidden states that a layer computes with. The others bypass it: backward, the gradient of a kept token
/// is what comes through the layer, that of another one what comes past it.
class KeptTokens {
 public:
  /// `hidden`: [samples, tokens, ...] or [tokens, samples, ...]. `positions`: int64 [samples, keep] on its device,
  /// ascending in each row.
  KeptTokens(const at::Tensor& hidden, const at::Tensor& positions, Order order);

  /// Hidden states with `keep` tokens.
  const at::Tensor& gathered() const { return gathered_; }

  /// The hidden states with the layer's output in the place of the kept tokens: once, with what the layer made of
  /// gathered(). Throws sdk::Error where the output is not of its shape.
  at::Tensor scatter(const at::Tensor& output) const;

 private:
  at::Tensor hidden_, rows_, gathered_;
  std::shared_ptr<torch::autograd::Node> gathering_;  // null where the hidden states need no gradient
};

/// What a decoder's layer needs of its mask [.., tokens, tokens] for the first `keep` tokens: [.., keep, keep]. The
/// tokens that are kept stay in order, so that a causal mask of them is the corner of the whole one. Dimensions of one
/// element stay.
at::Tensor corner(const at::Tensor& mask, std::int64_t tokens, std::int64_t keep);

/// The rows and columns of the kept positions of each sample, of a mask [samples or 1, .., tokens, tokens]:
/// [samples, .., keep, keep]. Dimensions of one element stay.
at::Tensor rows_and_columns(const at::Tensor& mask, const at::Tensor& positions, std::int64_t tokens);

}  // namespace capstan::random_ltd

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/attention/block_layout.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// A layout that a kernel, a component of kind "attention", has prepared itself for. Lives as long as a graph needs it.
class PreparedLayout {
 public:
  /// `layout`: without cells above the diagonal where it is causal. Throws PluginError.
  PreparedLayout(std::shared_ptr<const Component> kernel, const BlockLayout& layout);
  ~PreparedLayout();
  PreparedLayout(const PreparedLayout&) = delete;

  const Component& kernel() const { return *kernel_; }
  void* plan() const { return plan_; }
  double scores() const { return scores_; }  // of a sample, over all heads

 private:
  std::shared_ptr<const Component> kernel_;
  void* plan_ = nullptr;
  double scores_;
};

/// What joins the scores: a float tensor that is added, or a bool one that leaves scores out where it is false; of a
/// shape that fits [batch, heads, tokens, tokens].
using AttentionTerms = std::vector<at::Tensor>;

/// softmax(scale q k^T + terms) v over the blocks of the layout, with its gradients. q, k, v: [batch, heads, tokens,
/// d], of one dtype, float32, bfloat16 or float16. Throws PluginError with the kernel's text; RuntimeFault in a
/// backward that is to have a gradient of its own.
at::Tensor block_sparse_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionTerms& terms, double scale,
                                  std::shared_ptr<const PreparedLayout> layout);

}  // namespace capstan

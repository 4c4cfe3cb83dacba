#include "core/compression/straight_through.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace capstan {
namespace {

struct StraightThrough final : torch::autograd::Node {
  using Node::Node;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
  std::string name() const override { return "StraightThrough"; }
};

}  // namespace

at::Tensor straight_through(const at::Tensor& input, const at::Tensor& values) {
  if (!at::GradMode::is_enabled() || !input.requires_grad()) return values;
  const auto node = std::make_shared<StraightThrough>(torch::autograd::collect_next_edges(input));
  at::Tensor out = values;
  torch::autograd::create_gradient_edge(out, node);
  return out;
}

}  // namespace capstan

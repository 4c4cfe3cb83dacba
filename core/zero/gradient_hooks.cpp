#include "core/zero/gradient_hooks.hpp"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace capstan {
namespace {

/// Runs after a gradient was added to its parameter.
struct Hook final : torch::autograd::FunctionPostHook {
  Hook(const std::function<void(std::size_t)>& to, std::size_t parameter) : arrived(to), index(parameter) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    arrived(index);
    return outputs;
  }
  const std::function<void(std::size_t)>& arrived;
  std::size_t index;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters, std::function<void(std::size_t)> arrived)
    : arrived_(std::move(arrived)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
    const std::uintptr_t key = node->add_post_hook(std::make_unique<Hook>(arrived_, i));
    nodes_.emplace_back(std::move(node), key);
  }
}

GradientHooks::~GradientHooks() {
  for (const auto& [node, key] : nodes_) node->del_post_hook(key);
}

}  // namespace capstan

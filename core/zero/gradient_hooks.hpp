#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace capstan {

/// Hooks on parameters' autograd nodes, which the destructor removes: they call arrived(i) when backward has added a
/// gradient to parameter i. [a thread of backward]
class GradientHooks {
 public:
  GradientHooks(const std::vector<at::Tensor>& parameters, std::function<void(std::size_t)> arrived);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;

 private:
  std::function<void(std::size_t)> arrived_;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> nodes_;  // with the hooks' keys
};

}  // namespace capstan

#pragma once

namespace capstan {

/// While it lives, tensors of 64 KiB and more that this thread makes on the CPU get whole pages of their own, which are
/// taken again for the next tensor of the same size. In the heap the small blocks that last (nodes of the graph,
/// gradients, the tape) lie in the holes that a layer's activations leave, so that the activations of the next layer do
/// not fit and the heap grows from layer to layer: by 5 hidden tensors a layer of a GPT, as measured.
///
/// Free pages stay, so that pages in use and free ones together take 32 MiB more than was in use at most; where that is
/// too much, those that have been free longest go. The tensors may outlive the scope.
class ActivationMemoryScope {
 public:
  ActivationMemoryScope();
  ~ActivationMemoryScope();
  ActivationMemoryScope(const ActivationMemoryScope&) = delete;
  ActivationMemoryScope& operator=(const ActivationMemoryScope&) = delete;

 private:
  bool outer_;
};

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace capstan {

/// Decides what becomes of the tensors that autograd saves for backward.
class SavedTensorTaker {
 public:
  virtual ~SavedTensorTaker() = default;
  /// One pair of hooks, for the tensor that is about to be saved.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
};

/// While it lives, what autograd saves on this thread goes to `taker`; null: where LibTorch puts it.
///
/// LibTorch's C++ API takes default hooks from Python objects alone (ATen/SavedTensorHooks.h), but asks its autograd
/// engine for them. The first scope of a process puts an engine before LibTorch's, which lends hooks and hands
/// everything else on: this needs symbols that LibTorch exports and does not document.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorTaker* taker);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  SavedTensorTaker* outer_;
};

/// The same elements, as the result of an operator of which nothing is known but that it takes gradients: operators
/// save of it what they would save of the result itself. Backward cannot go through it.
at::Tensor as_result(const at::Tensor& tensor);

}  // namespace capstan

#include "core/memory/forward_rerun.hpp"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstring>
#include <memory>
#include <typeinfo>

namespace capstan {
namespace {

// The other one of the two kinds that LibTorch keeps for others; interceptor.cpp has the second.
constexpr auto kRerunKind = c10::DebugInfoKind::TEST_INFO;

struct RerunBatch final : c10::DebugInfoBase {
  RerunBatch(ForwardRerun& r, capstan_batch& b) : rerun(r), batch(b) {}
  ForwardRerun& rerun;
  capstan_batch& batch;
};

std::size_t hooks_of_thread() { return at::SavedTensorDefaultHooks::get_tls_state().stack.size(); }

/// Whether the node under evaluation is that of torch.utils.checkpoint with use_reentrant=True, which computes nothing
/// but its forward. libtorch_python.so alone knows the type of such nodes, so that they can be asked for names only.
bool in_reentrant_checkpoint() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return false;
  const torch::autograd::Node& known = *node;
  return std::strcmp(typeid(known).name(), "N5torch8autograd6PyNodeE") == 0 &&
         known.name() == "CheckpointFunctionBackward";
}

}  // namespace

void ForwardRerun::begin(bool backward) {
  hooks_ = hooks_of_thread();
  backward_ = backward;
  outermost_ = kNone;
}

bool ForwardRerun::now() {
  const int graph = torch::autograd::get_current_graph_task_id();
  if (graph < 0) return false;
  if (backward_) {
    int none = kNone;
    outermost_.compare_exchange_strong(none, graph);
  }
  const bool outermost = backward_ && outermost_ == graph;
  const bool hooked = hooks_of_thread() > hooks_;
  if (at::GradMode::is_enabled()) {
    // Any other graph may be walked with create_graph, which switches gradients on for backward's own operators.
    return outermost || !torch::autograd::get_current_graph_task_keep_graph() || (!backward_ && hooked);
  }
  return (outermost && hooked) || in_reentrant_checkpoint();
}

bool ForwardRerun::may_follow() const { return !at::GradMode::is_enabled() || hooks_of_thread() > 0; }

BatchRerunScope::BatchRerunScope(ForwardRerun& rerun, capstan_batch& batch)
    : batch_(kRerunKind, std::make_shared<RerunBatch>(rerun, batch)) {}

capstan_batch* batch_of_rerun() {
  auto* found = static_cast<RerunBatch*>(c10::ThreadLocalDebugInfo::get(kRerunKind));
  return found != nullptr && found->rerun.now() ? &found->batch : nullptr;
}

}  // namespace capstan

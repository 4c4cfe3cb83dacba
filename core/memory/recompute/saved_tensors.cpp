#include "core/memory/recompute/saved_tensors.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace capstan {
namespace {

namespace autograd = torch::autograd;

/// How LibTorch holds nodes of the graph: later than 2.11 not by std::shared_ptr.
using NodePointer = decltype(autograd::Edge::function);

template <class Pointer, class Made>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<autograd::Node>>) {
    return std::make_shared<Made>();
  } else {
    return c10::make_intrusive<Made>();
  }
}

thread_local SavedTensorTaker* current_taker = nullptr;

/// LibTorch asks it in the place of `engine`, which does all the work. It is never destroyed: threads of LibTorch may
/// outlive main().
class LendingEngine final : public autograd::Engine {
 public:
  explicit LendingEngine(autograd::Engine& engine) : engine_(engine) {}

  autograd::variable_list execute(const autograd::edge_list& roots, const autograd::variable_list& inputs,
                                  bool keep_graph, bool create_graph, bool accumulate_grad,
                                  const autograd::edge_list& outputs) override {
    return engine_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(const std::shared_ptr<autograd::GraphTask>& task,
                                                                 NodePointer root,
                                                                 autograd::InputBuffer&& input) override {
    return engine_.execute_with_graph_task(task, std::move(root), std::move(input));
  }
  std::unique_ptr<autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return engine_.make_anomaly_metadata();
  }
  std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_taker != nullptr ? current_taker->hooks() : engine_.get_default_saved_variable_hooks();
  }
  void thread_on_exception(const std::shared_ptr<autograd::GraphTask>& task, const NodePointer& node,
                           std::exception& error) override {
    engine_.thread_on_exception(task, node, error);
  }
  void thread_init(int device, const std::shared_ptr<autograd::ReadyQueue>& queue, bool should_increment) override {
    engine_.thread_init(device, queue, should_increment);
  }

 private:
  autograd::Engine& engine_;
};

autograd::Engine* lending_engine = nullptr;

void put_lending_engine_first() {
  static std::once_flag done;
  std::call_once(done, [] {
    lending_engine = new LendingEngine(autograd::Engine::get_default_engine());
    autograd::set_default_engine_stub([]() -> autograd::Engine& { return *lending_engine; });
  });
}

struct NoWayThrough final : autograd::Node {
  autograd::variable_list apply(autograd::variable_list&&) override {
    throw std::logic_error("backward went into operators that were run again for what they save");
  }
};

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorTaker* taker) : outer_(std::exchange(current_taker, taker)) {
  put_lending_engine_first();
}

SavedTensorScope::~SavedTensorScope() { current_taker = outer_; }

at::Tensor as_result(const at::Tensor& tensor) {
  at::Tensor result = tensor.tensor_data();
  const NodePointer node = make_node<NodePointer, NoWayThrough>();
  const std::uint32_t place = node->add_input_metadata(result);
  autograd::impl::set_gradient_edge(result, autograd::Edge(node, place));
  return result;
}

}  // namespace capstan

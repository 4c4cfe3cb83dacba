#include "core/compression/operand_inputs.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <string_view>

#include "core/compression/straight_through.hpp"

namespace capstan {
namespace {

struct KnownOperator {
  std::string_view name;
  int input, weight;
};

/// The operators in which linear layers and convolutions use their weights, of ATen's native_functions.yaml, and those
/// of heads and of generation.
constexpr KnownOperator kOperators[] = {
    {"aten::linear", 0, 1},
    {"aten::addmm", 1, 2},
    {"aten::mm", 0, 1},
    {"aten::matmul", 0, 1},
    {"aten::conv1d", 0, 1},
    {"aten::conv2d", 0, 1},
    {"aten::conv3d", 0, 1},
    {"aten::convolution", 0, 1},
    {"capstan::linear_cross_entropy", 0, 1},
    {"capstan::few_rows_linear", 0, 1},
};

}  // namespace

OperandInputs::OperandInputs(const Compressions& compressions, const std::vector<NamedTensor>& parameters,
                             ForwardRerun* rerun)
    : compressions_(compressions), rerun_(rerun) {
  for (const std::string& module : compressions.operands()) {
    const std::string weight = module.empty() ? "weight" : module + ".weight";
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const NamedTensor& parameter) { return parameter.name == weight; });
    unused_.insert(module);
    if (found == parameters.end()) continue;
    const std::int64_t begin = found->tensor.storage_offset();
    weights_.emplace(found->tensor.storage().unsafeGetStorageImpl(),
                     Weight{begin, begin + found->tensor.numel(), module});
  }
}

void OperandInputs::begin(std::int64_t updates, bool training, bool first) {
  updates_ = updates;
  training_ = training;
  if (!training) return;
  if (first) {
    uses_.clear();
  } else {
    uses_.keep_states(compressions_);
  }
}

std::vector<std::string> OperandInputs::unused() const { return {unused_.begin(), unused_.end()}; }

const std::string* OperandInputs::module_of(const at::Tensor& weight) const {
  const auto [first, last] = weights_.equal_range(weight.storage().unsafeGetStorageImpl());
  for (auto at = first; at != last; ++at) {
    if (weight.storage_offset() >= at->second.begin && weight.storage_offset() < at->second.end) {
      return &at->second.module;
    }
  }
  return nullptr;
}

const OperandInputs::Places& OperandInputs::places_of(const c10::OperatorHandle& op) {
  const void* schema = &op.schema();
  const auto known = operators_.find(schema);
  if (known != operators_.end()) return known->second;
  Places places;
  for (const KnownOperator& one : kOperators) {
    if (one.name == op.schema().name()) places = {one.input, one.weight};
  }
  return operators_.emplace(schema, places).first->second;
}

void OperandInputs::before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) {
  const bool again = rerun_ != nullptr && rerun_->now();
  // Backward, and a forward that takes gradients, multiply gradients with the weights: gradients are not inputs.
  if (!again && torch::autograd::get_current_graph_task_id() >= 0) return;
  const std::scoped_lock lock(mutex_);
  const Places& places = places_of(op);
  if (places.input < 0) return;
  const std::size_t first = stack.size() - argument_count;
  const c10::IValue& weight = stack[first + static_cast<std::size_t>(places.weight)];
  c10::IValue& input = stack[first + static_cast<std::size_t>(places.input)];
  if (!weight.isTensor() || !input.isTensor()) return;
  if (!weight.toTensor().defined() || !weight.toTensor().has_storage()) return;
  const std::string* module = module_of(weight.toTensor());
  if (module == nullptr) return;
  unused_.erase(*module);
  const at::Tensor given = input.toTensor();
  at::Tensor made;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor values = given.detach().contiguous();
    made = at::empty_like(values);
    if (!make(*module, values, again, made)) return;
  }
  input = straight_through(given, made);
}

bool OperandInputs::make(const std::string& module, const at::Tensor& input, bool again, at::Tensor& out) {
  if (again) return uses_.run_again(compressions_, module, input, updates_, out);
  if (training_) uses_.before(compressions_, module);
  if (!compressions_.operand(module, input, updates_, training_, out)) return false;
  if (training_ && rerun_ != nullptr && rerun_->may_follow()) uses_.add(module, input);
  return true;
}

}  // namespace capstan

#include "recorder.hpp"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>
#include <string_view>
#include <tuple>

#include "op_cost.hpp"

namespace capstan::profiler {
namespace {

/// What the engine calls the operators of a region that it runs again.
constexpr std::string_view kRunsAgain = "capstan::recompute";

/// RecordFunction's callbacks are plain functions: the one recorder that is on.
std::atomic<Recorder*> active_recorder{nullptr};

}  // namespace

struct Recorder::Call : at::ObserverContext {
  std::optional<OpCost> cost;  // set for a call that is counted as a whole
  bool outermost = false;
};

bool Recorder::start(std::unordered_map<const void*, std::string> parameters, c10::Device device) {
  Recorder* expected = nullptr;
  if (!active_recorder.compare_exchange_strong(expected, this)) return false;
  parameters_ = std::move(parameters);
  timeline_ = Timeline(device);
  clear();
  depth_ = counted_at_ = again_at_ = 0;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Recorder::begin_call, &Recorder::end_call)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  return true;
}

bool Recorder::let_go() {
  phase_ = Phase::kNone;
  if (handle_ == 0) return false;
  at::removeCallback(handle_);
  handle_ = 0;
  active_recorder = nullptr;
  return true;
}

void Recorder::stop() {
  if (!let_go()) return;
  timeline_.settle();
  for (OpRecord& record : records_) {
    record.begin_ns = timeline_.ns(record.begin);
    record.end_ns = timeline_.ns(record.end);
  }
  for (const auto& [begin, end] : again_) recomputed_.latency_ms += timeline_.ms(begin, end);
}

void Recorder::enter_layer(const std::string& name) { scopes_.emplace_back(name, ++next_scope_); }
void Recorder::leave_layer() { scopes_.pop_back(); }

std::unique_ptr<at::ObserverContext> Recorder::begin_call(const at::RecordFunction& call) {
  Recorder* recorder = active_recorder;
  return recorder ? recorder->begin(call) : nullptr;
}
void Recorder::end_call(const at::RecordFunction& call, at::ObserverContext* context) {
  Recorder* recorder = active_recorder;
  if (recorder && context) recorder->end(call, static_cast<Call&>(*context));
}

/// The parameter that a tensor, or one of a list, is or views; empty: none.
std::string Recorder::parameter_of(const c10::IValue& input) const {
  const auto name_of = [&](const at::Tensor& tensor) {
    const bool stored = tensor.defined() && tensor.has_storage();
    const auto found = stored ? parameters_.find(tensor.storage().unsafeGetStorageImpl()) : parameters_.end();
    return found == parameters_.end() ? std::string() : found->second;
  };
  if (input.isTensor()) return name_of(input.toTensor());
  if (input.isTensorList()) {
    for (const at::Tensor& tensor : input.toTensorVector()) {
      if (std::string name = name_of(tensor); !name.empty()) return name;
    }
  }
  return "";
}

std::string Recorder::parameter_among(const at::RecordFunction& call) const {
  for (const c10::IValue& input : call.inputs()) {
    if (std::string name = parameter_of(input); !name.empty()) return name;
  }
  return "";
}

/// torch::nn::Linear is matmul and add_: its bias is not counted, as that of aten::linear is not.
bool Recorder::adds_bias_of_product(const OpRecord& record) const {
  if (record.parameter.empty() || (record.name != "aten::add" && record.name != "aten::add_")) return false;
  if (records_.size() < 2) return false;
  const OpRecord& before = records_[records_.size() - 2];
  const auto owner = [](const std::string& name) { return name.substr(0, name.rfind('.')); };
  return before.macs > 0 && owner(before.parameter) == owner(record.parameter);
}

std::unique_ptr<Recorder::Call> Recorder::begin(const at::RecordFunction& call) {
  const bool node = call.scope() == at::RecordScope::BACKWARD_FUNCTION;
  if (depth_ == 0 && (phase_ == Phase::kNone || (phase_ == Phase::kBackward && !node))) return nullptr;
  auto context = std::make_unique<Call>();
  ++depth_;
  if (depth_ == 1) {
    context->outermost = true;
    OpRecord& record = records_.emplace_back();
    record.name = call.name();
    record.backward = node;
    record.sequence = call.seqNr();
    if (!node) record.parameter = parameter_among(call);
    if (!scopes_.empty()) std::tie(record.scope, record.scope_id) = scopes_.back();
    current_ = records_.size() - 1;
    record.begin = record.end = timeline_.mark();
  }
  if (again_at_ == 0 && kRunsAgain == call.name()) {
    again_at_ = depth_;
    again_begin_ = timeline_.mark();
  }
  if (counted_at_ == 0 && !node) {
    context->cost = cost_of(call.name(), call.inputs());
    if (context->cost) {
      counted_at_ = depth_;
      counted_ = context.get();
    }
    if (context->cost && depth_ == 1) {
      const std::string_view name = call.name();
      if (adds_bias_of_product(records_[current_])) *context->cost = {};
      if (name == "aten::addmm" && !parameter_of(call.inputs().front()).empty()) context->cost->flops = 0;
    }
  }
  if (counted_at_ != 0 && counted_at_ < depth_ && kSparseAttention == call.name()) {
    counted_->cost = cost_of(call.name(), call.inputs());
  }
  return context;
}

void Recorder::end(const at::RecordFunction& call, Call& context) {
  OpRecord& record = records_[current_];
  if (context.cost) {
    double outputs = 0;
    if (context.cost->needs_output() && !call.outputs().empty() && call.outputs().front().isTensor()) {
      outputs = static_cast<double>(call.outputs().front().toTensor().numel());
    }
    const double flops = context.cost->flops + outputs * context.cost->flops_per_output;
    const double macs = context.cost->macs + outputs * context.cost->macs_per_output;
    (again_at_ > 0 ? recomputed_.flops : record.flops) += flops;
    (again_at_ > 0 ? recomputed_.macs : record.macs) += macs;
  }
  if (counted_at_ == depth_) counted_at_ = 0;
  if (again_at_ == depth_) {
    again_at_ = 0;
    again_.emplace_back(again_begin_, timeline_.mark());
  }
  --depth_;
  if (context.outermost) record.end = timeline_.mark();
}

}  // namespace capstan::profiler

#include "core/engine/planned_pass.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/components/host.hpp"
#include "core/components/observers.hpp"
#include "core/config/component_params.hpp"
#include "core/loss/loss_chunk.hpp"
#include "core/memory/operands.hpp"
#include "core/memory/recompute/recomputation.hpp"
#include "core/memory/shapes_by_host.hpp"
#include "core/memory/shapes_only.hpp"
#include "core/model/batch_norm_types.hpp"
#include "core/model/dtype_names.hpp"
#include "core/model/layer_names.hpp"
#include "core/parameters/run_needs.hpp"
#include "core/registry/host.hpp"

namespace capstan {
namespace {

constexpr const char* kSection = "activation_checkpointing";
constexpr const char* kAttention = "aten::scaled_dot_product_attention";

/// An operator whose results may be views of its operands: it reads no elements.
bool may_view(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
  });
}

/// What LibTorch's flash kernel takes, gives and saves.
struct FlashAttention final : torch::autograd::Function<FlashAttention> {
  using Tensors = torch::autograd::variable_list;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value) {
    std::vector<std::int64_t> sizes = query.sizes().vec();
    sizes.back() = value.size(-1);
    // The heads of a row lie side by side.
    const std::size_t dims = sizes.size();
    if (dims >= 3) std::swap(sizes[dims - 2], sizes[dims - 3]);
    at::Tensor out = at::empty(sizes, query.options());
    if (dims >= 3) out = out.transpose(-2, -3);
    const at::Tensor rows = at::empty(query.sizes().slice(0, query.dim() - 1), query.options().dtype(at::kFloat));
    context->save_for_backward({query, key, value, out, rows});
    return out;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors) {
    const Tensors saved = context->get_saved_variables();
    return {at::empty_like(saved[0]), at::empty_like(saved[1]), at::empty_like(saved[2])};
  }
};

/// Sees every operator: makes tensors without values, notes parameters that are used, and adds up what lives.
class PassPolicy final : public OperatorPolicy {
 public:
  explicit PassPolicy(const std::vector<NamedTensor>& parameters) : parameters_(parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].tensor.has_storage()) places_.emplace(storage_of(parameters[i].tensor), i);
    }
  }
  /// What is not counted: it was there before.
  void exclude(const at::Tensor& tensor) { excluded_.insert(storage_of(tensor)); }

  void before(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override {
    shapes_.before(op, stack, argument_count);
    if (may_view(op)) return;
    for_each_operand(stack, argument_count, [&](const at::Tensor& operand, std::size_t) {
      if (!operand.defined() || !operand.has_storage()) return;
      const auto found = places_.find(storage_of(operand));
      if (found != places_.end()) uses.push_back(found->second);
    });
  }

  void returned(const c10::OperatorHandle& op, OperatorStack& stack) override {
    for (std::size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
      if (stack[i].isTensor()) {
        note(stack[i].toTensor());
      } else if (stack[i].isTensorList()) {
        for (const at::Tensor& tensor : stack[i].toTensorVector()) note(tensor);
      }
    }
    peak = std::max(peak, living());
  }
  void after(const c10::OperatorHandle&) noexcept override {}

  /// Without values LibTorch would take the kernel that keeps all scores: what flash attention does stands in its
  /// place.
  bool stands_in(const c10::OperatorHandle& op, OperatorStack& stack, std::size_t argument_count) override {
    if (op.schema().name() != kAttention) return false;
    const std::size_t first = stack.size() - argument_count;
    const at::Tensor query = stack[first].toTensor(), key = stack[first + 1].toTensor();
    if (query.dim() == 4 && key.size(2) == query.size(2) && stack[first + 4].toDouble() == 0) {
      attention.push_back({query.size(0), query.size(1), query.size(2), stack[first + 5].toBool()});
    }
    at::Tensor out = FlashAttention::apply(query, key, stack[first + 2].toTensor());
    stack.resize(first);
    stack.emplace_back(std::move(out));
    return true;
  }

  /// What composite operators make inside may be kept as well.
  bool looks_inside(const c10::OperatorHandle& op) override {
    const OperatorFacts& facts = book_.of(op);
    return facts.composite && facts.name != kAttention;
  }

  /// Bytes of all that operators have made and that still lives, gradients of parameters not counted.
  std::int64_t living() {
    std::int64_t bytes = 0;
    std::erase_if(made_, [](const auto& entry) { return entry.second.weak.expired(); });
    for (const auto& [storage, made] : made_) bytes += made.bytes;
    for (const NamedTensor& parameter : parameters_) {
      const at::Tensor& gradient = parameter.tensor.grad();
      if (gradient.defined() && made_.contains(storage_of(gradient))) bytes -= made_.at(storage_of(gradient)).bytes;
    }
    return bytes;
  }

  std::vector<std::size_t> uses;
  std::vector<PlannedAttention> attention;
  std::int64_t peak = 0;

 private:
  struct Made {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak;
    std::int64_t bytes;
  };
  static const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }
  void note(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const c10::StorageImpl* storage = storage_of(tensor);
    if (places_.contains(storage) || excluded_.contains(storage)) return;
    const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
    made_.insert_or_assign(storage, Made{tensor.storage().getWeakStorageImpl(), bytes});
  }

  const std::vector<NamedTensor>& parameters_;
  ShapesOnlyPolicy shapes_;
  OperatorBook book_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> places_;
  std::unordered_set<const c10::StorageImpl*> excluded_;
  std::unordered_map<const c10::StorageImpl*, Made> made_;
};

/// The observers of the section, without an engine behind them.
class Regions {
 public:
  Regions(const Model& model, const Config& config, const PluginIndex& plugins)
      : registry_(plugins, config.plugin_sha256), names_(layer_names(model)), host_(make_host()) {
    context_.model = &model;
    context_.layer_names = &names_;
    context_.recorded = &recorded_;
    context_.host = &host_;
    host_.ctx = &context_;
    add_engine_functions(host_);
    for (const ComponentChoice& choice : config.observers) {
      const ComponentRef found = plugins.find(choice.kind, choice.type);
      if (!found || found.component->section != kSection) continue;
      const Json params = component_params(choice, config, plugins);
      observers_.add(registry_.create(choice.where, choice.kind, choice.type, params, &host_, choice.device));
    }
    observers_.layers().set_names(names_);
    capstan_event event{};
    event.struct_size = sizeof event;
    event.kind = CAPSTAN_EVENT_INITIALIZED;
    observers_.emit(event);
  }

  void attach(Batch& batch, OperatorPolicy& policy) {
    if (observers_.layers().empty()) return;
    recomputation_.begin_forward({.inside = &policy, .whole = true}, false);
    batch.layers = &observers_.layers();
    batch.recomputation = &recomputation_;
  }
  void end_forward() { recomputation_.end_forward(); }

 private:
  Registry registry_;
  std::vector<std::string> names_;
  std::map<std::string, double> recorded_;
  EngineHostContext context_;
  capstan_host host_;
  Observers observers_;
  Recomputation recomputation_;
};

Batch batch_of(const Config& config, const Model& model) {
  const Json facts = model.describe();
  const Json* length = facts.find("sequence_length");
  const std::int64_t tokens = config.run.sequence_length       ? *config.run.sequence_length
                              : length && length->is_integer() ? length->as_integer()
                                                               : 1;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(at::kMeta);
  Batch batch;
  for (const char* name : {"input_ids", "labels"}) {
    batch.tensors.emplace(name, at::zeros({config.batch.micro_batch_size, tokens}, options));
  }
  return batch;
}

}  // namespace

PlannedPass follow_pass(Model& model, const Config& config, const PluginIndex& plugins, bool recompute) {
  PlannedPass pass;
  if (!config.precision.autocast_dtype.empty()) {
    pass.unknown = "autocast chooses types by the device, which tensors without values do not have.";
    return pass;
  }
  const at::ScalarType dtype = compute_dtype(config.precision);
  for (const NamedTensor& parameter : model.parameters()) {
    at::Tensor tensor = parameter.tensor;
    if (!tensor.is_meta()) {
      pass.unknown = "the model was built with values.";
      return pass;
    }
    if (at::isFloatingType(tensor.scalar_type()) && tensor.scalar_type() != dtype) tensor.set_data(tensor.to(dtype));
    tensor.mutable_grad().reset();
  }
  try {
    match_batch_norm_types(model);
    model.set_training(true);
    PassPolicy policy(model.parameters());
    for (const NamedTensor& buffer : model.buffers()) policy.exclude(buffer.tensor);
    Batch batch = batch_of(config, model);
    for (const auto& [name, tensor] : batch.tensors) policy.exclude(tensor);
    std::optional<Regions> regions;
    if (recompute) regions.emplace(model, config, plugins);
    const ShapesByHost shapes;
    const InterceptorScope scope(policy);
    if (regions) regions->attach(batch, policy);
    const LossChunkScope chunk(config.run.loss_chunk);
    const at::Tensor loss = model.forward(batch);
    if (regions) regions->end_forward();
    pass.kept_bytes = policy.living();
    pass.attention = policy.attention;
    loss.backward();
    pass.peak_bytes = policy.peak;
    pass.uses = std::move(policy.uses);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    pass = {};
    pass.unknown = "a forward without values failed: " + what.substr(0, what.find('\n'));
  }
  for (const NamedTensor& parameter : model.parameters()) at::Tensor(parameter.tensor).mutable_grad().reset();
  return pass;
}

}  // namespace capstan

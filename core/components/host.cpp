#include "core/components/host.hpp"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <exception>

#include "core/comm/communicator.hpp"
#include "core/components/curvature.hpp"
#include "core/components/layer_chain.hpp"
#include "core/components/model_host.hpp"
#include "core/components/pacing.hpp"
#include "core/components/tokenizers.hpp"
#include "core/compression/compressions.hpp"
#include "core/errors.hpp"
#include "core/memory/accelerator.hpp"
#include "core/memory/recompute/recomputation.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/model/batch.hpp"
#include "core/model/model.hpp"
#include "core/parameters/parameter_groups.hpp"
#include "core/parameters/parameter_store.hpp"
#include "core/registry/config_mistakes.hpp"
#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

/// Who called, for the log of collectives.
constexpr Communicator::Caller kPlugin = "plugin";

Communicator* communicator_of(void* ctx) {
  const auto& context = *static_cast<EngineHostContext*>(ctx);
  Communicator* communicator = context.communicator;
  if (context.store) context.store->settle();
  return communicator != nullptr && communicator->connected() ? communicator : nullptr;
}

/// `count` equal parts of a contiguous tensor.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, int count) {
  if (!tensor.is_contiguous() || tensor.numel() % count != 0) {
    throw RuntimeFault("collective: a contiguous tensor whose elements divide by " + std::to_string(count) +
                       " ranks is needed, got " + std::to_string(tensor.numel()) + " elements.");
  }
  std::vector<at::Tensor> parts;
  const std::int64_t share = tensor.numel() / count;
  for (int rank = 0; rank < count; ++rank) parts.push_back(tensor.view({-1}).narrow(0, rank * share, share));
  return parts;
}

// In a single process the sum is what is there, and exchanging with oneself is a copy.
capstan_status all_reduce_sum(void* ctx, capstan_tensor handle, capstan_error* error) {
  return guarded(error, [&] {
    Communicator* communicator = communicator_of(ctx);
    if (communicator) communicator->all_reduce_exact("a plugin's all-reduce", tensor_of(handle), kPlugin);
  });
}

capstan_status all_to_all(void* ctx, capstan_tensor out, capstan_tensor in, capstan_error* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    Communicator* communicator = communicator_of(ctx);
    if (communicator == nullptr) {
      tensor_of(out).copy_(tensor_of(in).view_as(tensor_of(out)));
      return;
    }
    communicator->all_to_all("a plugin's all-to-all", parts_of(tensor_of(in), communicator->size()),
                             parts_of(tensor_of(out), communicator->size()), kPlugin);
  });
}

capstan_status all_gather(void* ctx, capstan_tensor out, capstan_tensor in, capstan_error* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    Communicator* communicator = communicator_of(ctx);
    if (communicator == nullptr) {
      tensor_of(out).copy_(tensor_of(in).view_as(tensor_of(out)));
      return;
    }
    const auto parts = parts_of(tensor_of(out), communicator->size());
    at::Tensor own = parts[static_cast<std::size_t>(communicator->rank())];
    own.copy_(tensor_of(in).view_as(own));
    communicator->all_gather("a plugin's all-gather", parts, kPlugin);
  });
}

capstan_status broadcast(void* ctx, capstan_tensor handle, std::uint32_t root, capstan_error* error) {
  return guarded(error, [&] {
    Communicator* communicator = communicator_of(ctx);
    const std::uint32_t ranks = communicator ? static_cast<std::uint32_t>(communicator->size()) : 1;
    if (root >= ranks) {
      throw RuntimeFault("broadcast: root " + std::to_string(root) + " of " + std::to_string(ranks) +
                         (ranks == 1 ? " process." : " processes."));
    }
    if (communicator) {
      communicator->broadcast("a plugin's broadcast", parts_of(tensor_of(handle), 1), static_cast<int>(root), kPlugin);
    }
  });
}

/// The colors of all ranks.
std::vector<std::uint32_t> colors_of_ranks(Communicator& communicator, std::uint32_t own) {
  std::vector<std::uint32_t> colors;
  for (const std::string& text : communicator.all_gather_text("a plugin's split", std::to_string(own), kPlugin)) {
    colors.push_back(static_cast<std::uint32_t>(std::stoul(text)));
  }
  return colors;
}

std::unique_ptr<HostOfGroup> make_group(const EngineHostContext& whole, const std::vector<std::uint32_t>& colors) {
  std::vector<int> members;
  const auto own = static_cast<std::size_t>(whole.communicator->rank());
  for (std::size_t rank = 0; rank < colors.size(); ++rank) {
    if (colors[rank] == colors[own]) members.push_back(static_cast<int>(rank));
  }
  auto group = std::make_unique<HostOfGroup>();
  group->communicator = whole.communicator->group(members);
  group->host = *whole.host;
  group->host.ctx = &group->context;
  group->host.rank = static_cast<std::uint32_t>(group->communicator->rank());
  group->host.world_size = static_cast<std::uint32_t>(group->communicator->size());
  group->context.communicator = group->communicator.get();
  group->context.store = whole.store;
  group->context.compressions = whole.compressions;
  group->context.model = whole.model;
  group->context.accelerator = whole.accelerator;
  group->context.host = &group->host;
  group->context.layer_names = whole.layer_names;
  group->context.recorded = whole.recorded;
  group->context.told = whole.told;
  group->context.curvature = whole.curvature;
  group->context.pacing = whole.pacing;
  return group;
}

capstan_status split(void* ctx, std::uint32_t color, const capstan_host** out, capstan_error* error) {
  return guarded(error, [&] {
    auto& context = *static_cast<EngineHostContext*>(ctx);
    *out = context.host;
    Communicator* communicator = communicator_of(ctx);
    if (communicator == nullptr) return;
    const std::vector<std::uint32_t> colors = colors_of_ranks(*communicator, color);
    std::unique_ptr<HostOfGroup>& group = context.groups[colors];
    if (!group) group = make_group(context, colors);
    *out = &group->host;
  });
}

/// What an engine has, and a host that stands before the engine has not.
template <class T>
T& needed(T* part) {
  if (part == nullptr) throw RuntimeFault("the engine is not there yet: ask after the event INITIALIZED.");
  return *part;
}

ParameterStore& store_of(void* ctx) {
  auto* store = static_cast<EngineHostContext*>(ctx)->store;
  if (store == nullptr) throw RuntimeFault("the engine has no parameters yet: ask after the event INITIALIZED.");
  return *store;
}

capstan_status param_norm(void* ctx, capstan_str name, int which, double* out, capstan_error* error) {
  return guarded(error, [&] {
    ParameterStore& store = store_of(ctx);
    for (std::size_t i = 0; i < store.entries().size(); ++i) {
      const ParameterEntry& entry = store.entries()[i];
      if (entry.name != as_view(name)) continue;
      const std::string name =
          std::string("norm of the ") + (which == 0 ? "values" : "gradient") + " of '" + entry.name + "'";
      *out =
          std::sqrt(store.sum_over_ranks(name, which == 0 ? store.squares_of_master(i) : store.squares_of_gradient(i)));
      return;
    }
    throw RuntimeFault("no trainable parameter is named '" + std::string(as_view(name)) + "'.");
  });
}

capstan_status visit_parameters(void* ctx, const capstan_visitor* visitor, capstan_error* error) {
  return guarded(error, [&] {
    const Model* model = static_cast<EngineHostContext*>(ctx)->model;
    if (CAPSTAN_HAS(visitor, module) && model != nullptr) {
      for (const ModuleRecord& module : model->modules()) {
        visitor->module(visitor->ctx, as_str(module.path), as_str(module.class_name));
      }
    }
    if (!CAPSTAN_HAS(visitor, tensor)) return;
    ParameterStore& store = store_of(ctx);
    for (std::size_t i = 0; i < store.entries().size(); ++i) {
      ParameterEntry& entry = store.entries()[i];
      visitor->tensor(visitor->ctx, as_str(entry.name), handle_of(entry.parameter), CAPSTAN_ROLE_PARAMETER);
      // A part is left out: a visitor could not tell which part it is.
      if (entry.master.numel() != entry.parameter.numel()) continue;
      if (entry.master.is_meta()) continue;  // on a store: there is no tensor of all of it
      if (entry.master.scalar_type() == at::kFloat) {
        visitor->tensor(visitor->ctx, as_str(entry.name), handle_of(entry.master), CAPSTAN_ROLE_MASTER);
      }
      if (at::Tensor& gradient = store.gradients().shown(i); gradient.defined()) {
        visitor->tensor(visitor->ctx, as_str(entry.name), handle_of(gradient), CAPSTAN_ROLE_GRADIENT);
      }
    }
  });
}

capstan_status group_numbers(const capstan_group* group, capstan_str name, double* out, std::size_t count,
                             capstan_error* error) {
  const auto* values = group->find(as_view(name));
  if (values != nullptr && values->size() == count) {
    std::copy(values->begin(), values->end(), out);
    return CAPSTAN_OK;
  }
  error->text = "parameter group: " + std::to_string(count) + " number(s) '" + std::string(as_view(name)) +
                "' asked for, " + (values ? std::to_string(values->size()) : std::string("none")) +
                " there. Declare it as a numeric parameter in the manifest.";
  return CAPSTAN_FAILED;
}

capstan_status batch_tensor(capstan_batch* batch, capstan_str name, capstan_tensor* borrowed, capstan_error* error) {
  const auto found = batch->tensors.find(as_view(name));
  if (found != batch->tensors.end()) {
    *borrowed = handle_of(found->second);
    return CAPSTAN_OK;
  }
  error->text = "the batch has no tensor '" + std::string(as_view(name)) + "'. It has:";
  for (const auto& [key, tensor] : batch->tensors) error->text += " '" + key + "'";
  return CAPSTAN_FAILED;
}

capstan_status batch_set_tensor(capstan_batch* batch, capstan_str name, capstan_tensor tensor, capstan_error* error) {
  return guarded(error, [&] { batch->tensors.insert_or_assign(std::string(as_view(name)), tensor_of(tensor)); });
}

capstan_status batch_number(capstan_batch* batch, capstan_str name, double* out, int* found, capstan_error*) {
  const auto number = batch->numbers.find(as_view(name));
  *found = number != batch->numbers.end();
  if (*found) *out = number->second;
  return CAPSTAN_OK;
}

capstan_status batch_set_number(capstan_batch* batch, capstan_str name, double value, capstan_error* error) {
  return guarded(error, [&] { batch->numbers.insert_or_assign(std::string(as_view(name)), value); });
}

capstan_status batch_visit(capstan_batch* batch, const capstan_visitor* visitor, capstan_error*) {
  if (!CAPSTAN_HAS(visitor, tensor)) return CAPSTAN_OK;
  for (const auto& [name, tensor] : batch->tensors) {
    visitor->tensor(visitor->ctx, as_str(name), handle_of(tensor), CAPSTAN_ROLE_BUFFER);
  }
  return CAPSTAN_OK;
}

capstan_status layer(capstan_batch* batch, const capstan_layer_call* call, const capstan_inner* inner,
                     capstan_tensor* out, capstan_error* error) {
  if (batch->layers == nullptr) {
    return inner->run(inner->ctx, call->hidden, call->arguments, call->argument_count, out, error);
  }
  return guarded(error, [&] {
    capstan_layer_call with_batch = *call;
    with_batch.batch = batch;
    batch->layers->run(with_batch, *inner, out);
  });
}

capstan_status recompute(capstan_batch* batch, const capstan_layer_call* call, const capstan_inner* inner,
                         const capstan_recompute* how, capstan_tensor* out, capstan_error* error) {
  if (batch->recomputation == nullptr) {
    return inner->run(inner->ctx, call->hidden, call->arguments, call->argument_count, out, error);
  }
  return guarded(error, [&] { batch->recomputation->run(*call, *inner, *how, out); });
}

capstan_status layer_names_of_model(void* ctx, void* taker, void (*take)(void*, capstan_str), capstan_error* error) {
  return guarded(error, [&] {
    for (const std::string& name : needed(static_cast<EngineHostContext*>(ctx)->layer_names)) take(taker, as_str(name));
  });
}

capstan_status record(void* ctx, capstan_str tag, double value, capstan_error* error) {
  return guarded(error, [&] {
    needed(static_cast<EngineHostContext*>(ctx)->recorded).insert_or_assign(std::string(as_view(tag)), value);
  });
}

capstan_status tell(void* ctx, capstan_str name, double value, capstan_error* error) {
  return guarded(error, [&] {
    needed(static_cast<EngineHostContext*>(ctx)->told).insert_or_assign(std::string(as_view(name)), value);
  });
}

capstan_status told(void* ctx, capstan_str name, double* out, int* found, capstan_error* error) {
  return guarded(error, [&] {
    const auto& numbers = needed(static_cast<EngineHostContext*>(ctx)->told);
    const auto number = numbers.find(std::string(as_view(name)));
    *found = number != numbers.end();
    if (*found) *out = number->second;
  });
}

capstan_status want_curvature(void* ctx, capstan_error* error) {
  return guarded(error, [&] { needed(static_cast<EngineHostContext*>(ctx)->curvature).want(); });
}

capstan_status hessian_vector(void* ctx, const capstan_str* parameters, const capstan_tensor* v, capstan_tensor* hv,
                              std::size_t count, capstan_error* error) {
  return guarded(error, [&] {
    std::vector<std::string> names;
    std::vector<at::Tensor> vector;
    for (std::size_t i = 0; i < count; ++i) {
      names.emplace_back(as_view(parameters[i]));
      vector.push_back(tensor_of(v[i]));
    }
    const auto products = needed(static_cast<EngineHostContext*>(ctx)->curvature).product(names, vector);
    for (std::size_t i = 0; i < count; ++i) hv[i] = reinterpret_cast<capstan_tensor>(new at::Tensor(products[i]));
  });
}

capstan_status difficulty(void* ctx, capstan_str metric, std::int64_t step, std::int64_t* out, capstan_error* error) {
  return guarded(error, [&] {
    mark_config_mistakes(
        [&] { *out = needed(static_cast<EngineHostContext*>(ctx)->pacing).at(as_view(metric), step); });
  });
}

const PieceRanks& piece_ranks_of(void* ctx) {
  return needed(static_cast<EngineHostContext*>(ctx)->compressions).piece_ranks();
}

capstan_status sum_groups(void* ctx, const capstan_compressed* const* pieces, std::size_t count,
                          const std::uint64_t* group_sizes, const double* const* partials, double* const* totals,
                          capstan_error* error) {
  return guarded(error, [&] { piece_ranks_of(ctx).sum_groups(pieces, count, group_sizes, partials, totals); });
}

capstan_status select_largest(void* ctx, const capstan_tensor* parts, const std::uint32_t* sets, std::size_t part_count,
                              const std::uint64_t* k, std::size_t set_count, float* thresholds,
                              const capstan_tensor* masks, capstan_error* error) {
  return guarded(error,
                 [&] { piece_ranks_of(ctx).select_largest(parts, sets, part_count, k, set_count, thresholds, masks); });
}

capstan_status gather_piece(void* ctx, const capstan_compressed* piece, capstan_tensor part, capstan_tensor whole,
                            capstan_error* error) {
  return guarded(error, [&] { piece_ranks_of(ctx).gather(*piece, tensor_of(part), tensor_of(whole)); });
}

}  // namespace

void add_engine_functions(capstan_host& host) {
  host.stream = [](void* ctx) -> void* {
    const Accelerator* accelerator = static_cast<EngineHostContext*>(ctx)->accelerator;
    return accelerator ? accelerator->stream() : nullptr;
  };
  host.all_reduce_sum = all_reduce_sum;
  host.all_to_all = all_to_all;
  host.all_gather = all_gather;
  host.broadcast = broadcast;
  host.split = split;
  host.param_norm = param_norm;
  host.visit_parameters = visit_parameters;
  host.group_numbers = group_numbers;
  host.batch_tensor = batch_tensor;
  host.batch_set_tensor = batch_set_tensor;
  host.batch_number = batch_number;
  host.batch_set_number = batch_set_number;
  host.batch_visit = batch_visit;
  host.layer = layer;
  host.recompute = recompute;
  host.layer_names = layer_names_of_model;
  host.record = record;
  host.difficulty = difficulty;
  host.sum_groups = sum_groups;
  host.select_largest = select_largest;
  host.gather_piece = gather_piece;
  host.tell = tell;
  host.told = told;
  host.want_curvature = want_curvature;
  host.hessian_vector = hessian_vector;
  lend_tokenizers(host);
}

const capstan_host* model_host() {
  static EngineHostContext no_engine;
  static const capstan_host host = [] {
    capstan_host table = make_host();
    table.ctx = &no_engine;
    add_engine_functions(table);
    return table;
  }();
  return &host;
}

}  // namespace capstan

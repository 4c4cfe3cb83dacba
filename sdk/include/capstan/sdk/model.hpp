#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "capstan/layer.hpp"
#include "capstan/sdk/aten.hpp"
#include "capstan/sdk/component.hpp"

/// Models: any torch::nn::Module whose forward gives the loss. Pinned tier.
namespace capstan::sdk {

/// One micro-batch. Valid for the duration of a forward.
class BatchView {
 public:
  BatchView(const capstan_host* host, capstan_batch* batch, capstan_error* error)
      : host_(host), batch_(batch), error_(error) {}

  /// Throws the host's text when the batch has no tensor of that name.
  const at::Tensor& tensor(std::string_view name) const {
    capstan_tensor handle = nullptr;
    check(host_->batch_tensor(batch_, to_str(name), &handle, error_));
    return borrow(handle);
  }

  /// Null when the batch has no tensor of that name. Valid for the duration of the forward.
  const at::Tensor* find(std::string_view name) const {
    struct Search {
      std::string_view name;
      const at::Tensor* found = nullptr;
    } search{name};
    capstan_visitor visitor{};
    visitor.struct_size = sizeof visitor;
    visitor.ctx = &search;
    visitor.tensor = [](void* ctx, capstan_str given, capstan_tensor tensor, capstan_role) {
      auto& wanted = *static_cast<Search*>(ctx);
      if (to_view(given) == wanted.name) wanted.found = &borrow(tensor);
    };
    check(host_->batch_visit(batch_, &visitor, error_));
    return search.found;
  }

  /// A number that a component may have added: "curriculum_seqlen".
  std::optional<double> number(std::string_view name) const {
    double value = 0;
    int found = 0;
    check(host_->batch_number(batch_, to_str(name), &value, &found, error_));
    return found ? std::optional(value) : std::nullopt;
  }

 private:
  const capstan_host* host_;
  capstan_batch* batch_;
  capstan_error* error_;
};

template <class M>
concept TakesBatch = requires(M& module, const BatchView& batch) {
  { module.forward(batch) } -> std::convertible_to<at::Tensor>;
};

template <class M>
concept TakesTokensAndLabels = requires(M& module, const at::Tensor& tensor) {
  { module.forward(tensor, tensor) } -> std::convertible_to<at::Tensor>;
};

template <class M>
concept DescribesItself = requires(const M& module) {
  { module.describe() } -> std::convertible_to<std::string>;
};

template <class M>
concept ChecksBatches = requires(const M& module, const BatchView& batch) {
  module.check(batch);
};

/// Tensors that a model computes of a micro-batch beside its loss, by name: "logits".
using NamedOutputs = std::map<std::string, at::Tensor>;

template <class M>
concept GivesOutputs = requires(M& module, const BatchView& batch) {
  { module.outputs(batch) } -> std::convertible_to<NamedOutputs>;
};

/// A module that continues sequences token by token. M::Cache holds its memory of their earlier tokens.
template <class M>
concept Decodes = requires(M& module, const at::Tensor& ids, typename M::Cache& cache) {
  requires std::constructible_from<typename M::Cache, std::int64_t, std::int64_t>;
  { module.decode(ids, cache) } -> std::convertible_to<at::Tensor>;
};

/// The step function of a module that needs none of its own: forward(BatchView), or forward(input_ids, labels).
template <class M>
at::Tensor default_step(M& module, const BatchView& batch) {
  static_assert(TakesBatch<M> || TakesTokensAndLabels<M>,
                "forward must return the loss and take either (const capstan::sdk::BatchView&) or (input_ids, labels). "
                "Give a step function, at::Tensor(Module&, const BatchView&), for any other module.");
  if constexpr (TakesBatch<M>) {
    return module.forward(batch);
  } else {
    return module.forward(batch.tensor("input_ids"), batch.tensor("labels"));
  }
}

/// The loss as the engine wants it: a floating-point scalar.
inline at::Tensor scalar_loss(const at::Tensor& loss) {
  if (!loss.defined()) throw Error("returned an undefined tensor. Return the loss of the batch.");
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    throw Error("returned a " + std::string(c10::toString(loss.scalar_type())) + " tensor of shape " +
                c10::str(loss.sizes()) + ". Return one floating-point number, the mean loss of the batch.");
  }
  return loss.dim() == 0 ? loss : loss.reshape({});
}

/// Throws for two parameter tensors on the same values (tied with set_data): each would be updated by itself.
inline void require_separate_values(const torch::OrderedDict<std::string, at::Tensor>& parameters) {
  // By storage, not by address: parameters may have no memory yet.
  std::map<std::pair<const void*, std::int64_t>, const torch::OrderedDict<std::string, at::Tensor>::Item*> owners;
  for (const auto& item : parameters) {
    if (item.value().numel() == 0 || !item.value().has_storage()) continue;
    const std::pair<const void*, std::int64_t> place{item.value().storage().unsafeGetStorageImpl(),
                                                     item.value().storage_offset()};
    const auto [owner, added] = owners.emplace(place, &item);
    if (added || owner->second->value().is_same(item.value())) continue;
    throw Error("parameters '" + owner->second->key() + "' and '" + item.key() +
                "' are two tensors on the same values, and each would be updated by itself. Tie them by registering "
                "one tensor under both names, or one module twice.");
  }
}

/// A JSON object with one more member, an object of texts; unchanged where `text` is not an object, or has the member.
inline std::string with_texts(std::string text, const std::string& member,
                              const std::vector<std::pair<std::string, std::string>>& texts) {
  const auto quoted = [](const std::string& given) {
    std::string out = "\"";
    for (const char c : given) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + '"';
  };
  const std::size_t begin = text.find('{'), end = text.rfind('}');
  if (texts.empty() || begin == std::string::npos || end == std::string::npos ||
      text.find(quoted(member)) != std::string::npos) {
    return text;
  }
  std::string object;
  for (const auto& [name, value] : texts) {
    object += (object.empty() ? "" : ", ") + quoted(name) + ": " + quoted(value);
  }
  const bool first = text.find_first_not_of(" \t\r\n", begin + 1) == end;
  return text.insert(end, (first ? "" : ", ") + quoted(member) + ": {" + object + "}");
}

/// What a module shows of itself to the engine. M may have `std::string describe() const`, a JSON object of facts:
/// sequence_length, hidden_size, vocab_size, layers, and under non_persistent_buffers the names of buffers that
/// checkpoints leave out; `void check(const BatchView&) const`, which throws what is wrong with a micro-batch while it
/// is still in host memory; `NamedOutputs outputs(const BatchView&)`, what it computes beside the loss; and to generate
/// text a type `Cache(std::int64_t sequences, std::int64_t capacity)` with
/// `at::Tensor decode(const at::Tensor& ids, Cache&)`: `ids` are int64 [sequences, tokens], the tokens behind those
/// that the cache has seen, and the result are the logits of the token that follows, [sequences, vocab_size]. With the
/// fact "ragged_decode": true, decode also takes rows of different lengths, which end with -1 in the place of tokens,
/// and gives logits for the rows that have tokens, [those rows, vocab_size].
template <class M>
class ModuleModel {
 public:
  using Step = std::function<at::Tensor(M&, const BatchView&)>;

  ModuleModel(Host host, const Params& params) : ModuleModel(std::make_shared<M>(host, params), &default_step<M>) {}
  ModuleModel(std::shared_ptr<M> module, Step step) : module_(std::move(module)), step_(std::move(step)) {}

  /// Parameters, then buffers, then modules, each in the order of registration. A tensor that is registered under
  /// several names (tied weights) is shown once, under the first.
  void visit(const capstan_visitor& visitor) const {
    if (visitor.tensor) {
      require_separate_values(module_->named_parameters());
      std::unordered_set<const at::TensorImpl*> seen;
      const auto show = [&](const auto& named, capstan_role role) {
        for (const auto& item : named) {
          if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
          visitor.tensor(visitor.ctx, to_str(item.key()), lend(item.value()), role);
        }
      };
      show(module_->named_parameters(), CAPSTAN_ROLE_PARAMETER);
      show(module_->named_buffers(), CAPSTAN_ROLE_BUFFER);
    }
    if (visitor.module) {
      for (const auto& item : module_->named_modules()) {
        visitor.module(visitor.ctx, to_str(item.key()), to_str(item.value()->name()));
      }
    }
  }

  at::Tensor forward(const BatchView& batch) { return scalar_loss(step_(*module_, batch)); }
  void training(bool on) { module_->train(on); }
  /// The module's facts, and under "tied" the further names of tensors that it has registered several times.
  std::string describe() const {
    if constexpr (DescribesItself<M>) {
      return with_texts(module_->describe(), "tied", tied());
    } else {
      return with_texts("{}", "tied", tied());
    }
  }
  void check(const BatchView& batch) const requires ChecksBatches<M> { std::as_const(*module_).check(batch); }
  NamedOutputs outputs(const BatchView& batch) requires GivesOutputs<M> { return module_->outputs(batch); }
  M& module() { return *module_; }

 private:
  std::vector<std::pair<std::string, std::string>> tied() const {
    std::map<const at::TensorImpl*, std::string> first;
    std::vector<std::pair<std::string, std::string>> tied;
    const auto note = [&](const auto& named) {
      for (const auto& item : named) {
        if (!item.value().defined()) continue;
        const auto [place, added] = first.emplace(item.value().unsafeGetTensorImpl(), item.key());
        if (!added) tied.emplace_back(item.key(), place->second);
      }
    };
    note(module_->named_parameters());
    note(module_->named_buffers());
    return tied;
  }

  std::shared_ptr<M> module_;
  Step step_;
};

/// capstan_model on top of ModuleModel<M>; `self` is an Instance<ModuleModel<M>>.
template <class M>
struct ModelThunks {
  using Self = Instance<ModuleModel<M>>;

  static capstan_status visit(void* self, const capstan_visitor* visitor, capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] { model.object.visit(*visitor); });
  }

  static capstan_status forward(void* self, capstan_batch* batch, capstan_tensor* loss, capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] {
      const ForwardScope scope(model.host, batch, error);
      *loss = give(model.object.forward(BatchView(model.host, batch, error)));
    });
  }

  static capstan_status training(void* self, int on, capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] { model.object.training(on != 0); });
  }

  static capstan_status describe(void* self, capstan_sink* sink, capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] { Sink(model.host, sink).write(model.object.describe()); });
  }

  static capstan_status check(void* self, capstan_batch* batch, capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] {
      if constexpr (ChecksBatches<M>) model.object.check(BatchView(model.host, batch, error));
    });
  }

  static capstan_status outputs(void* self, capstan_batch* batch, void* ctx,
                                void (*take)(void* ctx, capstan_str name, capstan_tensor), capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] {
      if constexpr (GivesOutputs<M>) {
        const ForwardScope scope(model.host, batch, error);
        for (const auto& [name, tensor] : model.object.outputs(BatchView(model.host, batch, error))) {
          if (!tensor.defined()) throw Error("output '" + name + "' is an undefined tensor. Leave it out.");
          take(ctx, to_str(name), lend(tensor));
        }
      }
    });
  }

  static capstan_status begin_decode(void* self, std::size_t sequences, std::int64_t capacity, void** cache,
                                     capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] {
      if constexpr (Decodes<M>) *cache = new typename M::Cache(static_cast<std::int64_t>(sequences), capacity);
    });
  }

  static capstan_status decode(void* self, void* cache, capstan_tensor ids, capstan_tensor* logits,
                               capstan_error* error) {
    auto& model = *static_cast<Self*>(self);
    return guarded(model.host, error, [&] {
      if constexpr (Decodes<M>) {
        *logits = give(model.object.module().decode(borrow(ids), *static_cast<typename M::Cache*>(cache)));
      }
    });
  }

  static void end_decode(void*, void* cache) {
    if constexpr (Decodes<M>) delete static_cast<typename M::Cache*>(cache);
  }

  static constexpr capstan_model kVtable = {sizeof(capstan_model),
                                            &visit,
                                            &forward,
                                            &training,
                                            &describe,
                                            ChecksBatches<M> ? &check : nullptr,
                                            GivesOutputs<M> ? &outputs : nullptr,
                                            Decodes<M> ? &begin_decode : nullptr,
                                            Decodes<M> ? &decode : nullptr,
                                            Decodes<M> ? &end_decode : nullptr};
};

/// The descriptor of a model in a plugin. M is a torch::nn::Module with the constructor M(Host, const Params&).
template <class M, Literal Type>
inline constexpr capstan_component model =
    capstan::sdk::describe<ModuleModel<M>, "model", Type>(&ModelThunks<M>::kVtable);

}  // namespace capstan::sdk

#pragma once

#include <concepts>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "capstan/sdk/batch.hpp"
#include "capstan/sdk/component.hpp"

/// Observers: components that watch or change training at three places. Write those functions that you need; the rest
/// stays unattached and costs nothing. The manifest's `attach` must name the places: events, layers, batch.
///
///   class Freeze {
///    public:
///     Freeze(capstan::sdk::Host host, const capstan::sdk::Params& params);
///     // events: the life cycle of the run
///     void event(const capstan_event& event);  // or event(event, const capstan::sdk::Parameters& parameters)
///     // layers: what the layer gives to the model, a new handle; usually run.run(...) of something
///     capstan_tensor layer(capstan::sdk::LayerRun& run);
///     // batch: before each forward
///     void batch(capstan::sdk::Batch& batch);
///     // what a checkpoint must keep, as JSON
///     void save(const capstan::sdk::Sink& sink);
///     void load(const capstan::sdk::Document& saved);
///   };
///   CAPSTAN_PLUGIN(&capstan::sdk::observer<Freeze, "Freeze">)
///
/// Everything runs on the engine's thread, in the order of the step, and what is thrown stops the run with its text.
/// Handles that arrive are borrowed for the call; handles that are returned are new and belong to the engine. Read them
/// with torch::stable::Tensor (stable tier) or capstan/sdk/aten.hpp (pinned tier).
namespace capstan::sdk {

/// The engine's parameters, with their masters and gradients, as the event finds them. Valid during event().
class Parameters {
 public:
  Parameters(const capstan_host* host, capstan_error* error) : host_(host), error_(error) {}

  /// Calls take(name, tensor, role) for every parameter (CAPSTAN_ROLE_PARAMETER), its master values
  /// (CAPSTAN_ROLE_MASTER) and its gradient where there is one (CAPSTAN_ROLE_GRADIENT). Tensors are borrowed.
  template <class Take>
  void visit(Take&& take) const {
    struct Visit {
      Take& take;
      std::exception_ptr thrown;
    } visit{take, nullptr};
    capstan_visitor visitor{};
    visitor.struct_size = sizeof visitor;
    visitor.ctx = &visit;
    visitor.tensor = [](void* ctx, capstan_str name, capstan_tensor tensor, capstan_role role) {
      auto& self = *static_cast<Visit*>(ctx);
      if (self.thrown) return;
      try {
        self.take(to_view(name), tensor, role);
      } catch (...) {
        self.thrown = std::current_exception();
      }
    };
    check(host_->visit_parameters(host_->ctx, &visitor, error_));
    if (visit.thrown) std::rethrow_exception(visit.thrown);
  }

  /// Calls take(path, class_name) for every module that the model tells of, in its order; the root's path is empty.
  template <class Take>
  void modules(Take&& take) const {
    capstan_visitor visitor{};
    visitor.struct_size = sizeof visitor;
    visitor.ctx = &take;
    visitor.module = [](void* ctx, capstan_str path, capstan_str class_name) {
      (*static_cast<std::remove_reference_t<Take>*>(ctx))(to_view(path), to_view(class_name));
    };
    check(host_->visit_parameters(host_->ctx, &visitor, error_));
  }

 private:
  const capstan_host* host_;
  capstan_error* error_;
};

/// A model's call of one of its layers. Valid during layer().
class LayerRun {
 public:
  LayerRun(const capstan_host* host, const capstan_layer_call* call, const capstan_inner* inner, capstan_error* error)
      : host_(host), call_(call), inner_(inner), error_(error) {
    for (std::size_t i = 0; i < call->argument_count; ++i) arguments_.push_back(*call->arguments[i]);
  }

  /// Its place in the model's list of layers, and that list's length; index() = count() for one that the list lacks.
  std::uint32_t index() const { return call_->index; }
  std::uint32_t count() const { return call_->count; }
  std::string_view name() const { return to_view(call_->name); }
  /// What the layer is given. Borrowed.
  capstan_tensor hidden() const { return call_->hidden; }
  Batch batch() const { return {host_, call_->batch, error_}; }

  /// What the layer takes under that name, "attention_mask": borrowed, or null when the model passes none.
  capstan_tensor argument(std::string_view name) const {
    for (const capstan_argument& argument : arguments_) {
      if (to_view(argument.name) == name) return argument.tensor;
    }
    return nullptr;
  }
  /// Puts another tensor in the place of an argument that is there; it is borrowed until run() returns.
  void replace(std::string_view name, capstan_tensor tensor) {
    for (capstan_argument& argument : arguments_) {
      if (to_view(argument.name) != name) continue;
      argument.tensor = tensor;
      return;
    }
    throw Error("layer '" + std::string(this->name()) + "' has no argument '" + std::string(name) + "'");
  }

  /// Runs the layer; the result is a new handle that the caller owns. At most once.
  capstan_tensor run(capstan_tensor hidden) const {
    const std::vector<const capstan_argument*> given = pointers();
    capstan_tensor out = nullptr;
    check(inner_->run(inner_->ctx, hidden, given.data(), given.size(), &out, error_));
    return out;
  }

  /// Runs the layer with activations that are forgotten and computed again in backward. `how.ctx` must be valid until
  /// the event CLOSING, its list of operators during this call.
  capstan_tensor recompute(capstan_tensor hidden, const capstan_recompute& how) const {
    const std::vector<const capstan_argument*> given = pointers();
    capstan_layer_call call = *call_;
    call.hidden = hidden;
    call.arguments = given.data();
    call.argument_count = given.size();
    capstan_tensor out = nullptr;
    check(host_->recompute(call_->batch, &call, inner_, &how, &out, error_));
    return out;
  }

 private:
  std::vector<const capstan_argument*> pointers() const {
    std::vector<const capstan_argument*> pointers;
    for (const capstan_argument& argument : arguments_) pointers.push_back(&argument);
    return pointers;
  }

  const capstan_host* host_;
  const capstan_layer_call* call_;
  const capstan_inner* inner_;
  capstan_error* error_;
  std::vector<capstan_argument> arguments_;
};

template <class T>
struct ObserverThunks {
  using Self = Instance<T>;

  static constexpr bool kPlainEvents = requires(T & t, const capstan_event& event) { t.event(event); };
  static constexpr bool kEventsWithParameters =
      requires(T & t, const capstan_event& event, const Parameters& parameters) {
    t.event(event, parameters);
  };
  static constexpr bool kEvents = kPlainEvents || kEventsWithParameters;
  static constexpr bool kWrapsLayers = requires(T & t, LayerRun& run) {
    { t.layer(run) } -> std::same_as<capstan_tensor>;
  };
  static constexpr bool kChangesBatches = requires(T & t, Batch& batch) { t.batch(batch); };
  static constexpr bool kSaves = requires(T & t, const Sink& sink) { t.save(sink); };
  static constexpr bool kLoads = requires(T & t, const Document& saved) { t.load(saved); };
  static_assert(kSaves == kLoads, "save and load belong together.");

  static capstan_status event(void* self, const capstan_event* event, capstan_error* error) {
    auto& observer = *static_cast<Self*>(self);
    return guarded(observer.host, error, [&] {
      if constexpr (kEventsWithParameters) {
        observer.object.event(*event, Parameters(observer.host, error));
      } else if constexpr (kPlainEvents) {
        observer.object.event(*event);
      }
    });
  }

  static capstan_status layer(void* self, const capstan_layer_call* call, const capstan_inner* inner,
                              capstan_tensor* out, capstan_error* error) {
    auto& observer = *static_cast<Self*>(self);
    return guarded(observer.host, error, [&] {
      if constexpr (kWrapsLayers) {
        LayerRun run(observer.host, call, inner, error);
        *out = observer.object.layer(run);
      }
    });
  }

  static capstan_status batch(void* self, capstan_batch* batch, capstan_error* error) {
    auto& observer = *static_cast<Self*>(self);
    return guarded(observer.host, error, [&] {
      Batch view(observer.host, batch, error);
      if constexpr (kChangesBatches) observer.object.batch(view);
    });
  }

  // SavedCalls of a class that has neither would not compile.
  static constexpr auto save_call() {
    if constexpr (kSaves) {
      return &SavedCalls<T>::save;
    } else {
      return nullptr;
    }
  }
  static constexpr auto load_call() {
    if constexpr (kLoads) {
      return &SavedCalls<T>::load;
    } else {
      return nullptr;
    }
  }

  static constexpr capstan_observer kVtable = {sizeof(capstan_observer),
                                               kEvents ? &event : nullptr,
                                               kWrapsLayers ? &layer : nullptr,
                                               kChangesBatches ? &batch : nullptr,
                                               save_call(),
                                               load_call()};
};

/// The descriptor of observer class T.
template <class T, Literal Type>
inline constexpr capstan_component observer = describe<T, "observer", Type>(&ObserverThunks<T>::kVtable);

}  // namespace capstan::sdk

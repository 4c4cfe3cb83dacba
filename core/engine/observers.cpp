#include "core/engine/observers.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <exception>

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/component_states.hpp"
#include "core/registry/config_mistakes.hpp"

namespace capstan {

void Observers::add(Component component) {
  auto& added = *observers_.emplace_back(std::make_unique<Attached>(std::move(component)));
  const std::string& type = added.component.manifest().type;
  added.where = "observer '" + type + "'";
  const auto earlier = std::count_if(observers_.begin(), observers_.end() - 1,
                                     [&](const auto& other) { return other->component.manifest().type == type; });
  added.key = state_key(type, static_cast<std::size_t>(earlier));
  const auto* table = added.vtable();
  const ComponentManifest& manifest = added.component.manifest();
  const auto attach = [&](const char* place, bool offered) {
    if (!manifest.attaches(place)) return false;
    if (!offered) {
      throw PluginError(added.where + ": its manifest attaches to '" + place +
                        "', but it has no function for that. Implement it, or take it out of `attach`.");
    }
    return true;
  };
  if (attach("events", CAPSTAN_HAS(table, event))) events_.push_back(&added);
  if (attach("weights", CAPSTAN_HAS(table, selects_weight) && CAPSTAN_HAS(table, transform_weight))) {
    weights_.push_back(&added);
  }
  if (attach("operands", CAPSTAN_HAS(table, rewrite_operand))) operands_.push_back(&added);
  if (attach("layers", CAPSTAN_HAS(table, layer_call) || CAPSTAN_HAS(table, layer))) layers_.add(added.component);
  if (attach("batch", CAPSTAN_HAS(table, batch))) batches_.push_back(&added);
}

void Observers::emit(const capstan_event& event) {
  const auto tell = [&](const Attached& observer) {
    call_plugin(observer.component.function("event"), observer.where,
                [&](capstan_error* error) { return observer.vtable()->event(observer.self(), &event, error); });
  };
  // Where the engine starts, one run shows all mistakes; a later event stops at the first one.
  ConfigMistakes mistakes;
  for (const Attached* observer : events_) {
    if (event.kind == CAPSTAN_EVENT_INITIALIZED) {
      mistakes.gather([&] { tell(*observer); });
    } else {
      tell(*observer);
    }
  }
  mistakes.throw_if_any();
}

void Observers::change_batch(Batch& batch) {
  for (const Attached* observer : batches_) {
    call_plugin(observer->component.function("batch"), observer->where,
                [&](capstan_error* error) { return observer->vtable()->batch(observer->self(), &batch, error); });
  }
}

int Observers::select_transform(const NamedTensor& parameter) const {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    int yes = 0;
    call_plugin(weights_[i]->component.function("selects_weight"), weights_[i]->where, [&](capstan_error* error) {
      return weights_[i]->vtable()->selects_weight(weights_[i]->self(), as_str(parameter.name),
                                                   parameter.tensor.sizes().data(),
                                                   static_cast<std::uint32_t>(parameter.tensor.dim()), &yes, error);
    });
    if (yes) return static_cast<int>(i);
  }
  return -1;
}

void Observers::transform(const ParameterEntry& entry, std::int64_t update_index) const {
  const Attached& observer = *weights_[static_cast<std::size_t>(entry.transform)];
  // The author sees the parameter's own shape; the master is kept contiguous.
  const at::Tensor master = entry.master.view(entry.shape);
  call_plugin(observer.component.function("transform_weight"), observer.where + ", parameter '" + entry.name + "'",
              [&](capstan_error* error) {
                return observer.vtable()->transform_weight(observer.self(), as_str(entry.name), handle_of(master),
                                                           handle_of(entry.compute), update_index, error);
              });
}

/// See Observers::operand_policy.
class Observers::OperandPolicy final : public OperatorPolicy {
 public:
  OperandPolicy(const std::vector<const Attached*>& observers, const std::vector<NamedTensor>& parameters)
      : observers_(observers) {
    for (const NamedTensor& parameter : parameters) {
      names_.emplace(parameter.tensor.storage().unsafeGetStorageImpl(), parameter.name);
    }
  }

  void before(const c10::OperatorHandle& op, torch::jit::Stack& stack, std::size_t argument_count) override {
    for (std::size_t i = stack.size() - argument_count; i < stack.size(); ++i) rewrite(op, stack[i]);
  }
  void after(const c10::OperatorHandle&) noexcept override {}

 private:
  void rewrite(const c10::OperatorHandle& op, c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& operand = value.toTensor();
      if (at::Tensor replaced = offer(op, operand); replaced.defined()) value = std::move(replaced);
    } else if (value.isTensorList()) {
      auto list = value.toTensorList();
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (at::Tensor replaced = offer(op, list.get(i)); replaced.defined()) list.set(i, std::move(replaced));
      }
    } else if (value.isOptionalTensorList()) {
      auto list = value.toOptionalTensorList();
      for (std::size_t i = 0; i < list.size(); ++i) {
        const std::optional<at::Tensor> operand = list.get(i);
        if (!operand) continue;
        if (at::Tensor replaced = offer(op, *operand); replaced.defined()) list.set(i, std::move(replaced));
      }
    }
  }

  at::Tensor offer(const c10::OperatorHandle& op, const at::Tensor& operand) {
    if (!operand.defined() || !operand.has_storage()) return {};
    const auto found = names_.find(operand.storage().unsafeGetStorageImpl());
    if (found == names_.end()) return {};
    at::Tensor current;
    for (const Attached* observer : observers_) {
      capstan_tensor out = nullptr;
      call_plugin(observer->component.function("rewrite_operand"),
                  observer->where + ", parameter '" + found->second + "'", [&](capstan_error* error) {
                    return observer->vtable()->rewrite_operand(
                        observer->self(), as_str(op.schema().name()), as_str(found->second),
                        handle_of(current.defined() ? current : operand), &out, error);
                  });
      if (out != nullptr) current = take_tensor(out);
    }
    return current;
  }

  const std::vector<const Attached*>& observers_;
  std::unordered_map<const void*, std::string> names_;
};

std::unique_ptr<OperatorPolicy> Observers::operand_policy(const std::vector<NamedTensor>& parameters) const {
  return std::make_unique<OperandPolicy>(operands_, parameters);
}

std::vector<std::string> Observers::state_keys() const {
  std::vector<std::string> keys;
  for (const auto& observer : observers_) {
    const capstan_observer* table = observer->vtable();
    if (CAPSTAN_HAS(table, save) && CAPSTAN_HAS(table, load)) keys.push_back(observer->key);
  }
  return keys;
}

Json Observers::save() const {
  Json states = Json::object();
  for (const auto& observer : observers_) {
    if (!CAPSTAN_HAS(observer->vtable(), save)) continue;
    states[observer->key] = plugin_text(observer->component.function("save"), observer->where + ", save",
                                        [&](capstan_sink* sink, capstan_error* error) {
                                          return observer->vtable()->save(observer->self(), sink, error);
                                        });
  }
  return states;
}

void Observers::load(const Json& states) {
  for (const auto& observer : observers_) {
    const Json* state = states.find(observer->key);
    if (state == nullptr || !CAPSTAN_HAS(observer->vtable(), load)) continue;
    call_plugin(observer->component.function("load"), observer->where + ", load", [&](capstan_error* error) {
      return observer->vtable()->load(observer->self(), as_str(state->as_string()), error);
    });
  }
}

}  // namespace capstan

#include "core/components/observers.hpp"

#include <algorithm>
#include <exception>

#include "core/errors.hpp"
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
  if (attach("layers", CAPSTAN_HAS(table, layer))) layers_.add(added.component);
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

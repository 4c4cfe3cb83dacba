#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "capstan/plugin.h"
#include "core/registry/call_in_progress.hpp"
#include "core/registry/plugin_call.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A created component. Destroyed with the object; its library stays loaded for ever.
class Component {
 public:
  /// `index` keeps what `ref` points to.
  Component(const capstan_component* descriptor, void* self, ComponentRef ref, PluginIndex index = {});
  ~Component();
  Component(Component&&) noexcept;
  Component& operator=(Component&&) = delete;

  /// The vtable of that kind, e.g. component.vtable<capstan_optimizer>().
  template <class Vtable>
  const Vtable* vtable() const {
    return static_cast<const Vtable*>(descriptor_->vtable);
  }
  void* self() const { return self_; }
  const ComponentManifest& manifest() const { return *ref_.component; }
  const IndexedPlugin& plugin() const { return *ref_.plugin; }
  /// One of its functions, for call_plugin(): component.function("update"). `name` must live for ever.
  PluginFunction function(const char* name) const { return {label_, name}; }

 private:
  const capstan_component* descriptor_;
  void* self_;
  ComponentRef ref_;
  PluginIndex index_;
  const char* label_;
};

/// Loads plugins and creates components. Not thread-safe; libraries stay loaded until the process ends.
class Registry {
 public:
  /// `sha256`: file name -> 64 hexadecimal digits that the file must have (capstan.plugins.sha256).
  explicit Registry(const PluginIndex& index, std::map<std::string, std::string> sha256 = {});

  /// Creates a component. `params` must be validated and complete. `where` opens error texts: "optimizer.type".
  /// Throws PluginError.
  Component create(std::string_view where, std::string_view kind, std::string_view type, const Json& params,
                   const capstan_host* host, std::string_view device = "cpu");

  /// Loads the file of a component without creating one, for what its libraries bring into the process. Throws
  /// PluginError.
  void load(std::string_view where, std::string_view kind, std::string_view type);

  const PluginIndex& index() const { return index_; }

 private:
  const capstan_component* load(const ComponentRef& ref);

  PluginIndex index_;
  std::map<const IndexedPlugin*, const capstan_plugin*> loaded_;
  std::map<std::string, std::string> sha256_;
};

/// The version of LibTorch in this process ("2.11.0") and the build id of its libc10.so; empty where there is none.
struct TorchIdentity {
  std::string version, build_id;
};
TorchIdentity running_torch();

}  // namespace capstan

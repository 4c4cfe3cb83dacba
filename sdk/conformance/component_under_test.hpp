#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/registry/host.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/registry/registry.hpp"
#include "core/text/json.hpp"
#include "sdk/conformance/case.hpp"

namespace capstan::conformance {

/// Parameters that a component's schema accepts: its defaults, and something for what has none but is required.
Json default_params(const ComponentManifest& component);

/// One component of the plugin under test, with a host of its own: one process, collectives that do what they would
/// with one rank, groups whose numbers are the component's parameters.
class ComponentUnderTest {
 public:
  /// Throws Broken when it cannot be created.
  /// `change` may lend it another host than that of one rank.
  ComponentUnderTest(const Context& context, const ComponentManifest& manifest, const Json& params,
                     const std::function<void(capstan_host&)>& change = nullptr);
  ComponentUnderTest(const Context& context, const ComponentManifest& manifest)
      : ComponentUnderTest(context, manifest, default_params(manifest)) {}

  template <class Vtable>
  const Vtable* vtable() const {
    return component_->vtable<Vtable>();
  }
  void* self() const { return component_->self(); }
  const capstan_host* host() const { return host_.get(); }

 private:
  std::unique_ptr<capstan_host> host_;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<Component> component_;
};

/// The numbers of a parameter group; what the C side calls capstan_group.
struct Group {
  Json numbers;
  const capstan_group* raw() const { return reinterpret_cast<const capstan_group*>(this); }
};

/// The host that components are created with.
capstan_host make_test_host();

/// A direct create(), with `params` as they are: the status, the error's text, and the instance or null.
struct Creation {
  capstan_status status = CAPSTAN_FAILED;
  std::string error;
  void* self = nullptr;
};
Creation create(const capstan_component* descriptor, const capstan_host* host, std::string_view params);

/// The loaded descriptor of a component.
const capstan_component* descriptor_of(const Context& context, const ComponentManifest& manifest);

/// Runs a call and fails with the plugin's text. For calls that must work.
template <class Call>
void must(const std::string& what, Call&& call) {
  try {
    call_plugin(what, std::forward<Call>(call));
  } catch (const PluginError& error) {
    throw Broken(error.what());
  }
}

/// Runs a call that may refuse, but only with a text. True when it worked.
template <class Call>
bool may_refuse(const std::string& what, Call&& call) {
  capstan_error error;
  const capstan_status status = call(&error);
  expect(status == CAPSTAN_OK || !error.text.empty(), what + ": failed without a text.");
  return status == CAPSTAN_OK;
}

}  // namespace capstan::conformance

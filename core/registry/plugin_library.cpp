#include "core/registry/plugin_library.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>

#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>

#include "core/errors.hpp"
#include "core/registry/load_failure.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

constexpr const char* kEntry = "capstan_plugin_v1";

// What version 1.0 had: plugins of later minors may have more.
constexpr std::size_t kPluginSize = offsetof(capstan_plugin, component_count) + sizeof(capstan_plugin::component_count);
constexpr std::size_t kComponentSize = offsetof(capstan_component, vtable) + sizeof(capstan_component::vtable);

#define CAPSTAN_NEED(Vtable, member) \
  if (!CAPSTAN_HAS(static_cast<const Vtable*>(table), member)) return #member

/// The first function without which a component of that kind is none; empty when all are there.
std::string missing_function(std::string_view kind, const void* table) {
  if (kind == "optimizer") {
    CAPSTAN_NEED(capstan_optimizer, update);
  } else if (kind == "scheduler") {
    CAPSTAN_NEED(capstan_scheduler, rate);
  } else if (kind == "monitor") {
    CAPSTAN_NEED(capstan_monitor, write);
  } else if (kind == "model") {
    CAPSTAN_NEED(capstan_model, visit);
    CAPSTAN_NEED(capstan_model, forward);
    CAPSTAN_NEED(capstan_model, training);
  } else if (kind == "offload") {
    CAPSTAN_NEED(capstan_offload, register_buffer);
    CAPSTAN_NEED(capstan_offload, write_async);
    CAPSTAN_NEED(capstan_offload, read_async);
    CAPSTAN_NEED(capstan_offload, wait);
  } else if (kind == "accelerator") {
    CAPSTAN_NEED(capstan_accelerator, count);
    CAPSTAN_NEED(capstan_accelerator, open);
    CAPSTAN_NEED(capstan_accelerator, stream);
    CAPSTAN_NEED(capstan_accelerator, memory);
    CAPSTAN_NEED(capstan_accelerator, record);
    CAPSTAN_NEED(capstan_accelerator, elapsed);
    CAPSTAN_NEED(capstan_accelerator, forget);
  }
  return "";
}

#undef CAPSTAN_NEED

[[noreturn]] void fail(const IndexedPlugin& plugin, const std::string& message) {
  throw PluginError(plugin.file.string() + ": " + message);
}

void check_components(const IndexedPlugin& plugin, const capstan_plugin& loaded) {
  for (std::size_t i = 0; i < loaded.component_count; ++i) {
    const capstan_component* component = loaded.components[i];
    if (!component || component->struct_size < kComponentSize || !component->create || !component->vtable) {
      fail(plugin, "the descriptor of component " + std::to_string(i) +
                       " is incomplete. Make it with the SDK of this release.");
    }
    const std::string name = std::string(as_view(component->kind)) + " '" + std::string(as_view(component->type)) + "'";
    bool declared = false;
    for (const auto& manifest : plugin.manifest.components) {
      declared |= manifest.kind == as_view(component->kind) && manifest.type == as_view(component->type);
    }
    if (!declared) fail(plugin, "provides " + name + ", which its manifest does not declare. Add it to plugin.toml.");
    if (const auto function = missing_function(as_view(component->kind), component->vtable); !function.empty()) {
      fail(plugin, name + " has no function '" + function + "', which the kind needs.");
    }
  }
  for (const auto& manifest : plugin.manifest.components) {
    bool provided = false;
    for (std::size_t i = 0; i < loaded.component_count; ++i) {
      provided |=
          manifest.kind == as_view(loaded.components[i]->kind) && manifest.type == as_view(loaded.components[i]->type);
    }
    if (!provided) {
      fail(plugin, "its manifest declares " + manifest.kind + " '" + manifest.type +
                       "', but its code does not provide it. Is it missing from CAPSTAN_PLUGIN(...)?");
    }
  }
}

void check_descriptor(const IndexedPlugin& plugin, const capstan_plugin* loaded) {
  if (!loaded || loaded->struct_size < kPluginSize || !loaded->manifest ||
      (loaded->component_count > 0 && !loaded->components)) {
    fail(plugin, std::string(kEntry) + "() returns an incomplete descriptor. Make it with CAPSTAN_PLUGIN(...).");
  }
  if (loaded->abi_major != plugin.manifest.abi_major || loaded->abi_minor != plugin.manifest.abi_minor) {
    fail(plugin, "its code speaks plugin ABI " + std::to_string(loaded->abi_major) + "." +
                     std::to_string(loaded->abi_minor) + ", its manifest says " +
                     std::to_string(plugin.manifest.abi_major) + "." + std::to_string(plugin.manifest.abi_minor) +
                     ". Rebuild it with capstan_add_plugin() and one SDK.");
  }
  if (plugin.manifest.text != loaded->manifest) {
    fail(plugin,
         "the manifest in its code is not the one in its .capstan.manifest section. Rebuild it with "
         "capstan_add_plugin().");
  }
  check_components(plugin, *loaded);
}

boost::dll::shared_library& open(const IndexedPlugin& plugin) {
  namespace dll = boost::dll;
  // Never destroyed: what a plugin created may outlive every object of ours.
  static std::mutex& mutex = *new std::mutex;
  static auto& libraries = *new std::map<std::string, dll::shared_library>;
  const std::string path = std::filesystem::canonical(plugin.file).string();
  const std::lock_guard lock(mutex);
  if (const auto found = libraries.find(path); found != libraries.end()) return found->second;
  dll::shared_library library;
  std::error_code error;
  ::dlerror();
  // The default mode is lazy: a symbol that is missing would end the process at its first call.
  library.load(path, error, dll::load_mode::rtld_now | dll::load_mode::rtld_local);
  if (error) {
    const char* text = ::dlerror();
    throw PluginError(explain_load_failure(plugin.file.string(), text ? text : error.message()));
  }
  return libraries.emplace(path, std::move(library)).first->second;
}

}  // namespace

const capstan_plugin* load_plugin_library(const IndexedPlugin& plugin) {
  boost::dll::shared_library& library = open(plugin);
  if (!library.has(kEntry)) {
    fail(plugin, std::string("exports no ") + kEntry + ". Was CAPSTAN_PLUGIN(...) left out of its sources?");
  }
  const capstan_plugin* loaded = library.get<const capstan_plugin*()>(kEntry)();
  check_descriptor(plugin, loaded);
  return loaded;
}

}  // namespace capstan

#include "core/registry/plugin_library.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/registry/call_in_progress.hpp"
#include "core/registry/file_hash.hpp"
#include "core/registry/guilty_plugin.hpp"
#include "core/registry/load_failure.hpp"
#include "core/registry/plugin_call.hpp"
#include "core/registry/plugin_kind.hpp"

namespace capstan {
namespace {

constexpr const char* kEntry = "capstan_plugin_v1";

// What version 1.0 had: plugins of later minors may have more.
constexpr std::size_t kPluginSize = offsetof(capstan_plugin, component_count) + sizeof(capstan_plugin::component_count);
constexpr std::size_t kComponentSize = offsetof(capstan_component, vtable) + sizeof(capstan_component::vtable);

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
    const PluginKind* kind = find_plugin_kind(as_view(component->kind));
    if (const auto function = kind ? kind->missing_function(component->vtable) : ""; !function.empty()) {
      fail(plugin, name + " has no function '" + std::string(function) + "', which the kind needs.");
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

/// A library that stays for ever, and the bytes that it was loaded from when they are not those of its file: another
/// library of the name by which the process opens them would be taken for it.
struct Loaded {
  boost::dll::shared_library library;
  std::optional<SealedFile> bytes;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// Said aloud for what somebody brought; what came with Capstan is where Capstan is.
void announce(const IndexedPlugin& plugin) {
  const std::string text =
      "loading plugin " + plugin.manifest.name + " " + plugin.manifest.version + ", " + plugin.file.string();
  const auto folder = plugin.file.lexically_relative(installed_plugin_folder());
  if (folder.empty() || folder.native().starts_with("..")) {
    log::info(text);
  } else {
    log::debug(text);
  }
}

boost::dll::shared_library& open(const IndexedPlugin& plugin, std::optional<SealedFile> bytes) {
  namespace dll = boost::dll;
  // Never destroyed: what a plugin created may outlive every object of ours.
  static std::mutex& mutex = *new std::mutex;
  static auto& libraries = *new std::map<std::string, Loaded>;
  const std::string file = std::filesystem::canonical(plugin.file).string();
  // What was loaded of a file before says nothing of the bytes that were pinned.
  const std::string key = bytes ? file + " " + sha256_of_file(bytes->path()) : file;
  const std::lock_guard lock(mutex);
  if (const auto found = libraries.find(key); found != libraries.end()) return found->second.library;
  announce(plugin);
  dll::shared_library library;
  std::error_code error;
  const std::string path = bytes ? bytes->path().string() : file;
  ::dlerror();
  const CallInProgress in_progress({label_of(plugin), nullptr});  // its static constructors
  // The default mode is lazy: a symbol that is missing would end the process at its first call.
  library.load(path, error, dll::load_mode::rtld_now | dll::load_mode::rtld_local);
  if (error) {
    const char* text = ::dlerror();
    throw PluginError(explain_load_failure(plugin.file.string(),
                                           replaced(text ? text : error.message(), path, plugin.file.string())));
  }
  note_plugin_code(library.native(), plugin);
  return libraries.emplace(key, Loaded{std::move(library), std::move(bytes)}).first->second.library;
}

}  // namespace

const capstan_plugin* load_plugin_library(const IndexedPlugin& plugin, std::optional<SealedFile> bytes) {
  boost::dll::shared_library& library = open(plugin, std::move(bytes));
  if (!library.has(kEntry)) {
    fail(plugin, std::string("exports no ") + kEntry + ". Was CAPSTAN_PLUGIN(...) left out of its sources?");
  }
  const CallInProgress in_progress({label_of(plugin), kEntry});
  const capstan_plugin* loaded = library.get<const capstan_plugin*()>(kEntry)();
  check_descriptor(plugin, loaded);
  return loaded;
}

}  // namespace capstan

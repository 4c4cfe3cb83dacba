#include "core/registry/registry.hpp"

#include <algorithm>
#include <optional>

#include "core/registry/config_mistakes.hpp"
#include "core/registry/file_hash.hpp"
#include "core/registry/file_trust.hpp"
#include "core/registry/guilty_plugin.hpp"
#include "core/registry/plugin_library.hpp"
#include "core/registry/plugin_pin.hpp"
#include "core/registry/sealed_file.hpp"
#include "core/registry/torch_tier.hpp"

namespace capstan {
namespace {

/// A SHA-256 that a plugin's file must have, and who says so.
struct Pin {
  std::string sha256, origin;
};

std::optional<Pin> pin_for(const IndexedPlugin& plugin, const std::map<std::string, std::string>& pins) {
  if (const auto pin = pins.find(plugin.file.filename().string()); pin != pins.end()) {
    std::string wanted = pin->second;
    std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](unsigned char c) { return std::tolower(c); });
    return Pin{wanted, "capstan.plugins.sha256"};
  }
  if (const auto sha256 = read_pin(plugin.file)) return Pin{*sha256, pin_of(plugin.file).string()};
  return std::nullopt;
}

/// The bytes of a plugin that is pinned, found to be those of the pin; nothing for one that is not pinned.
std::optional<SealedFile> pinned_bytes(const IndexedPlugin& plugin, const std::map<std::string, std::string>& pins) {
  const auto pin = pin_for(plugin, pins);
  if (!pin) return std::nullopt;
  SealedFile bytes(plugin.file);
  const std::string found = sha256_of_file(bytes.path());
  if (found != pin->sha256) {
    throw PluginError(plugin.file.string() + ": its SHA-256 is " + found + ", " + pin->origin + " wants " +
                      pin->sha256 + ". It is not the file that was pinned, so it was not loaded.");
  }
  return bytes;
}

/// What can be known without running a byte of it, again: the file may have changed since the scan.
void check_before_loading(const IndexedPlugin& plugin) {
  if (const Trust trust = check_trust(plugin.file, "file"); !trust.refusal.empty()) throw PluginError(trust.refusal);
  const std::string mismatch = torch_mismatch(plugin.file.string(), plugin.manifest, running_torch());
  if (!mismatch.empty()) throw PluginError(mismatch);
}

const capstan_component* find_component(const capstan_plugin& plugin, const ComponentManifest& manifest) {
  for (std::size_t i = 0; i < plugin.component_count; ++i) {
    const capstan_component* component = plugin.components[i];
    if (as_view(component->kind) == manifest.kind && as_view(component->type) == manifest.type) return component;
  }
  return nullptr;
}

/// "plugin acme-muon (/opt/libmuon.so), optimizer 'Muon'".
const char* label_of(const ComponentRef& ref) {
  const std::string plugin = ref.plugin ? std::string(label_of(*ref.plugin)) + ", " : "";
  return kept_text(plugin + ref.component->kind + " '" + ref.component->type + "'");
}

}  // namespace

Component::Component(const capstan_component* descriptor, void* self, ComponentRef ref, PluginIndex index)
    : descriptor_(descriptor), self_(self), ref_(ref), index_(std::move(index)), label_(label_of(ref_)) {}

Component::~Component() {
  if (!descriptor_ || !descriptor_->destroy) return;
  const CallInProgress in_progress(function("destroy"));
  descriptor_->destroy(self_);
}

Component::Component(Component&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)),
      self_(std::exchange(other.self_, nullptr)),
      ref_(other.ref_),
      index_(other.index_),
      label_(other.label_) {}

Registry::Registry(const PluginIndex& index, std::map<std::string, std::string> sha256)
    : index_(index), sha256_(std::move(sha256)) {}

const capstan_component* Registry::load(const ComponentRef& ref) {
  const auto found = loaded_.find(ref.plugin);
  if (found != loaded_.end()) return find_component(*found->second, *ref.component);
  check_before_loading(*ref.plugin);
  std::optional<SealedFile> bytes = pinned_bytes(*ref.plugin, sha256_);
  const capstan_plugin* plugin = load_plugin_library(*ref.plugin, std::move(bytes));
  loaded_.emplace(ref.plugin, plugin);
  return find_component(*plugin, *ref.component);
}

void Registry::load(std::string_view where, std::string_view kind, std::string_view type) {
  const ComponentRef ref = index_.find(kind, type);
  if (!ref) throw PluginError(index_.missing_text(where, kind, type));
  load(ref);
}

Component Registry::create(std::string_view where, std::string_view kind, std::string_view type, const Json& params,
                           const capstan_host* host, std::string_view device) {
  const ComponentRef ref = index_.find(kind, type, device);
  if (!ref) throw PluginError(index_.missing_text(where, kind, type, device));
  const capstan_component* descriptor = load(ref);
  const std::string text = params.dump();
  void* self = nullptr;
  with_config_mistakes([&] {
    call_plugin({label_of(ref), "create"},
                std::string(where) + ": " + ref.component->kind + " '" + ref.component->type + "' (" +
                    ref.plugin->file.string() + ") could not be created",
                [&](capstan_error* error) { return descriptor->create(host, as_str(text), &self, error); });
  });
  return Component(descriptor, self, ref, index_);
}

}  // namespace capstan

#include "tests/plugins/plugin_host.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "core/text/toml.hpp"

namespace capstan::testing {
namespace {

capstan_str as_str(std::string_view text) { return {text.data(), text.size()}; }
std::string_view as_view(capstan_str text) { return {text.data, text.size}; }

capstan_status fail(capstan_error* error, const std::string& text) {
  error->text = text;
  return CAPSTAN_FAILED;
}

/// The value at a JSON pointer without escapes, or null.
const Json* find(const Json& document, std::string_view pointer) {
  const Json* value = &document;
  while (value != nullptr && !pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string key(pointer.substr(0, pointer.find('/')));
    pointer.remove_prefix(key.size());
    if (value->is_array()) {
      const auto index = static_cast<std::size_t>(std::atoi(key.c_str()));
      value = index < value->size() ? &value->as_array()[index] : nullptr;
    } else {
      value = value->find(key);
    }
  }
  return value;
}

capstan_status json_number(capstan_str json, capstan_str pointer, double* out, capstan_error* error) {
  const Json document = Json::parse(as_view(json));
  const Json* value = find(document, as_view(pointer));
  if (value != nullptr && value->is_bool()) {
    *out = value->as_bool() ? 1 : 0;
  } else if (value != nullptr && value->is_number()) {
    *out = value->as_number();
  } else {
    return fail(error, std::string(as_view(pointer)) + ": no number there");
  }
  return CAPSTAN_OK;
}

capstan_status json_text(capstan_str json, capstan_str pointer, void* ctx, void (*take)(void*, capstan_str),
                         capstan_error* error) {
  const Json document = Json::parse(as_view(json));
  const Json* value = find(document, as_view(pointer));
  if (value == nullptr) return fail(error, std::string(as_view(pointer)) + ": nothing there");
  take(ctx, as_str(value->is_string() ? value->as_string() : value->dump()));
  return CAPSTAN_OK;
}

capstan_status json_size(capstan_str json, capstan_str pointer, size_t* out, capstan_error*) {
  const Json document = Json::parse(as_view(json));
  const Json* value = find(document, as_view(pointer));
  const bool nothing = value == nullptr || value->is_null();
  *out = nothing ? 0 : value->is_array() || value->is_object() ? value->size() : 1;
  return CAPSTAN_OK;
}

capstan_status group_numbers(const capstan_group* group, capstan_str name, double* out, size_t count,
                             capstan_error* error) {
  const Json* value = group->numbers.find(as_view(name));
  if (value == nullptr || value->is_null()) return fail(error, "no number '" + std::string(as_view(name)) + "'");
  const auto number = [](const Json& item) { return item.is_bool() ? double(item.as_bool()) : item.as_number(); };
  if (!value->is_array()) {
    if (count != 1) return fail(error, "one number only");
    *out = number(*value);
    return CAPSTAN_OK;
  }
  if (value->size() != count) return fail(error, "another count");
  for (size_t i = 0; i < count; ++i) out[i] = number(value->as_array()[i]);
  return CAPSTAN_OK;
}

/// Manifest and parameters of `type`, completed from its schema.
Json component_manifest(const capstan_plugin& plugin, std::string_view type) {
  const Json manifest = parse_toml(plugin.manifest, "manifest");
  for (const Json& component : manifest.at("components").as_array()) {
    if (component.at("type").as_string() == type) return component;
  }
  throw std::runtime_error("no component " + std::string(type));
}

Json completed(const Json& manifest, const Json& given) {
  Json params = given;
  for (const auto& [name, spec] : manifest.at("params").as_object()) {
    const Json* fallback = spec.find("default");
    if (params.find(name) == nullptr && fallback != nullptr) params[name] = *fallback;
  }
  return params;
}

}  // namespace

PluginHost::PluginHost(Seat seat) : seat_(seat) {
  table_.struct_size = sizeof table_;
  table_.abi_major = CAPSTAN_ABI_MAJOR;
  table_.abi_minor = CAPSTAN_ABI_MINOR;
  table_.ctx = this;
  table_.set_error = [](capstan_error* error, capstan_str text) { error->text = std::string(as_view(text)); };
  table_.log = [](void* ctx, int level, capstan_str text) {
    const char* levels[] = {"debug: ", "info: ", "warning: ", "error: "};
    static_cast<PluginHost*>(ctx)->log_.push_back(levels[level] + std::string(as_view(text)));
  };
  table_.stream = [](void*) -> void* { return nullptr; };  // where LibTorch works unless told otherwise
  table_.sink_write = [](capstan_sink* sink, capstan_str text) { sink->text += as_view(text); };
  table_.json_number = &json_number;
  table_.json_text = &json_text;
  table_.json_size = &json_size;
  table_.group_numbers = &group_numbers;
  table_.rank = seat.rank;
  table_.world_size = seat.world_size;
  if (seat.lend_collectives != nullptr) seat.lend_collectives(table_);
}

PluginComponent::PluginComponent(std::string_view kind, std::string_view plugin, std::string_view type,
                                 const Json& params, Seat seat)
    : host_(seat) {
  const bool is_file = plugin.find('/') != std::string_view::npos;
  const std::string file = is_file ? std::string(plugin)
                                   : std::string(CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins/") + std::string(kind) +
                                         "s/libcapstan_" + std::string(kind) + "_" + std::string(plugin) + ".so";
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<const capstan_plugin* (*)()>(dlsym(library, "capstan_plugin_v1"));
  const capstan_plugin& loaded = *entry();
  for (size_t i = 0; i < loaded.component_count; ++i) {
    const capstan_component* component = loaded.components[i];
    if (as_view(component->kind) == kind && as_view(component->type) == type) descriptor_ = component;
  }
  if (descriptor_ == nullptr) throw std::runtime_error(file + ": no component " + std::string(type));
  manifest_ = component_manifest(loaded, type);
  params_ = completed(manifest_, params);
  const std::string text = params_.dump();
  expect_ok([&](capstan_error* error) { return descriptor_->create(host_.table(), as_str(text), &self_, error); });
}

PluginComponent::~PluginComponent() {
  if (self_ != nullptr) descriptor_->destroy(self_);
}

}  // namespace capstan::testing

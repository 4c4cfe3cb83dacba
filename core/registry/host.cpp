#include "core/registry/host.hpp"

#include <charconv>
#include <exception>
#include <string>

#include "core/config/json.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

void set_error(capstan_error* error, capstan_str message) { error->text = as_view(message); }

void write_log(void*, int level, capstan_str message) {
  static constexpr log::Level kLevels[] = {log::Level::kDebug, log::Level::kInfo, log::Level::kWarning,
                                           log::Level::kError};
  log::write(kLevels[level < 0 ? 0 : level > 3 ? 3 : level], as_view(message));
}

void sink_write(capstan_sink* sink, capstan_str text) { sink->text += as_view(text); }

/// One step of a JSON pointer: ~1 stands for / and ~0 for ~.
std::string unescape(std::string_view token) {
  std::string text;
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size()) {
      text += token[++i] == '1' ? '/' : '~';
    } else {
      text += token[i];
    }
  }
  return text;
}

/// The value at an RFC 6901 pointer, or null when there is none.
const Json* find_pointer(const Json& document, std::string_view pointer) {
  const Json* value = &document;
  while (!pointer.empty() && value != nullptr) {
    if (pointer.front() != '/') return nullptr;
    pointer.remove_prefix(1);
    const std::string_view token = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(token.size());
    if (value->is_array()) {
      std::size_t index = 0;
      const auto [end, problem] = std::from_chars(token.data(), token.data() + token.size(), index);
      const bool valid = problem == std::errc() && end == token.data() + token.size() && index < value->size();
      value = valid ? &value->as_array()[index] : nullptr;
    } else {
      value = value->find(unescape(token));
    }
  }
  return value;
}

/// Parses and looks up; hands the value to `use`.
template <class Use>
capstan_status with_value(capstan_str json, capstan_str pointer, capstan_error* error, Use&& use) noexcept {
  try {
    const Json document = Json::parse(as_view(json));
    use(find_pointer(document, as_view(pointer)));
    return CAPSTAN_OK;
  } catch (const std::exception& thrown) {
    error->text = thrown.what();
    return CAPSTAN_FAILED;
  }
}

/// "betas/0" of "/betas/0", for messages.
std::string key_text(capstan_str pointer) {
  const std::string_view text = as_view(pointer);
  return std::string(text.starts_with('/') ? text.substr(1) : text);
}

capstan_status json_number(capstan_str json, capstan_str pointer, double* out, capstan_error* error) {
  return with_value(json, pointer, error, [&](const Json* value) {
    if (value != nullptr && value->is_bool()) {
      *out = value->as_bool() ? 1 : 0;
    } else if (value != nullptr && value->is_number()) {
      *out = value->as_number();
    } else {
      throw ConfigError(key_text(pointer) + ": a number expected, found " + (value ? value->type_name() : "nothing") +
                        ".");
    }
  });
}

capstan_status json_text(capstan_str json, capstan_str pointer, void* ctx, void (*take)(void*, capstan_str),
                         capstan_error* error) {
  return with_value(json, pointer, error, [&](const Json* value) {
    if (value == nullptr) throw ConfigError(key_text(pointer) + ": missing.");
    take(ctx, as_str(value->is_string() ? value->as_string() : value->dump()));
  });
}

capstan_status json_size(capstan_str json, capstan_str pointer, std::size_t* out, capstan_error* error) {
  return with_value(json, pointer, error, [&](const Json* value) {
    const bool holds_members = value != nullptr && (value->is_array() || value->is_object());
    *out = value == nullptr || value->is_null() ? 0 : holds_members ? value->size() : 1;
  });
}

}  // namespace

capstan_host make_host() {
  capstan_host host{};
  host.struct_size = sizeof host;
  host.abi_major = CAPSTAN_ABI_MAJOR;
  host.abi_minor = CAPSTAN_ABI_MINOR;
  host.set_error = set_error;
  host.log = write_log;
  host.sink_write = sink_write;
  host.cuda_stream = [](void*) -> void* { return nullptr; };
  host.rank = 0;
  host.world_size = 1;
  host.json_number = json_number;
  host.json_text = json_text;
  host.json_size = json_size;
  return host;
}

}  // namespace capstan

#include "core/registry/host.hpp"

#include <exception>

#include "core/log.hpp"
#include "core/registry/json_pointer.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {
namespace {

void set_error(capstan_error* error, capstan_str message) { error->text = std::string(as_view(message)); }

void write_log(void*, int level, capstan_str message) {
  switch (level) {
    case CAPSTAN_LOG_DEBUG:
      return log::debug(as_view(message));
    case CAPSTAN_LOG_INFO:
      return log::info(as_view(message));
    case CAPSTAN_LOG_WARNING:
      return log::warning(as_view(message));
    default:
      return log::error(as_view(message));
  }
}

void sink_write(capstan_sink* sink, capstan_str text) { sink->text += as_view(text); }

/// The document, parsed once for the many getters that read one text.
const Json& parsed(capstan_str text) {
  struct Last {
    std::string text = "null";
    Json document;
  };
  thread_local Last last;
  if (as_view(text) != last.text) {
    last.document = Json::parse(as_view(text));
    last.text = std::string(as_view(text));
  }
  return last.document;
}

/// "betas/0" for messages.
std::string shown(capstan_str pointer) {
  const std::string_view text = as_view(pointer);
  return text.empty() ? "the document" : std::string(text.substr(text.front() == '/' ? 1 : 0));
}

const Json& value_at(capstan_str json, capstan_str pointer) {
  const Json* value = resolve_pointer(parsed(json), as_view(pointer));
  if (!value) throw PluginError(shown(pointer) + ": is missing.");
  return *value;
}

capstan_status json_number(capstan_str json, capstan_str pointer, double* out, capstan_error* error) {
  return guarded(error, [&] {
    const Json& value = value_at(json, pointer);
    if (!value.is_number() && !value.is_bool()) {
      throw PluginError(shown(pointer) + ": must be a number, got " + value.dump() + ".");
    }
    *out = value.is_bool() ? (value.as_bool() ? 1.0 : 0.0) : value.as_number();
  });
}

capstan_status json_text(capstan_str json, capstan_str pointer, void* ctx, void (*take)(void*, capstan_str),
                         capstan_error* error) {
  return guarded(error, [&] {
    const Json& value = value_at(json, pointer);
    // A copy: `take` may read another document through this same host.
    const std::string text = value.is_string() ? value.as_string() : value.dump();
    take(ctx, as_str(text));
  });
}

capstan_status json_size(capstan_str json, capstan_str pointer, std::size_t* out, capstan_error* error) {
  return guarded(error, [&] {
    const Json* value = resolve_pointer(parsed(json), as_view(pointer));
    *out = !value || value->is_null() ? 0 : value->is_array() || value->is_object() ? value->size() : 1;
  });
}

capstan_status json_names(capstan_str json, capstan_str pointer, void* ctx, void (*take)(void*, capstan_str),
                          capstan_error* error) {
  return guarded(error, [&] {
    const Json* value = resolve_pointer(parsed(json), as_view(pointer));
    if (!value || !value->is_object()) return;
    for (const auto& [name, member] : value->as_object()) take(ctx, as_str(name));
  });
}

capstan_status no_engine(capstan_error* error, const char* what) {
  error->text = std::string(what) + " needs a running engine, and this program has none.";
  return CAPSTAN_FAILED;
}

}  // namespace

capstan_host make_host() {
  capstan_host host{};
  host.struct_size = sizeof host;
  host.abi_major = CAPSTAN_ABI_MAJOR;
  host.abi_minor = CAPSTAN_ABI_MINOR;
  host.set_error = &set_error;
  host.log = &write_log;
  host.sink_write = &sink_write;
  host.json_number = &json_number;
  host.json_text = &json_text;
  host.json_size = &json_size;
  host.json_names = &json_names;
  host.stream = [](void*) -> void* { return nullptr; };
  host.rank = 0;
  host.world_size = 1;

  host.all_reduce_sum = [](void*, capstan_tensor, capstan_error* error) { return no_engine(error, "all_reduce_sum"); };
  host.all_to_all = [](void*, capstan_tensor, capstan_tensor, capstan_error* error) {
    return no_engine(error, "all_to_all");
  };
  host.all_gather = [](void*, capstan_tensor, capstan_tensor, capstan_error* error) {
    return no_engine(error, "all_gather");
  };
  host.split = [](void*, std::uint32_t, const capstan_host**, capstan_error* error) {
    return no_engine(error, "split");
  };
  host.sum_groups = [](void*, const capstan_compressed* const*, std::size_t, const std::uint64_t*, const double* const*,
                       double* const*, capstan_error* error) { return no_engine(error, "sum_groups"); };
  host.select_largest = [](void*, const capstan_tensor*, const std::uint32_t*, std::size_t, const std::uint64_t*,
                           std::size_t, float*, const capstan_tensor*,
                           capstan_error* error) { return no_engine(error, "select_largest"); };
  host.gather_piece = [](void*, const capstan_compressed*, capstan_tensor, capstan_tensor, capstan_error* error) {
    return no_engine(error, "gather_piece");
  };
  host.broadcast = [](void*, capstan_tensor, std::uint32_t, capstan_error* error) {
    return no_engine(error, "broadcast");
  };
  host.param_norm = [](void*, capstan_str, int, double*, capstan_error* error) {
    return no_engine(error, "param_norm");
  };
  host.group_numbers = [](const capstan_group*, capstan_str, double*, std::size_t, capstan_error* error) {
    return no_engine(error, "group_numbers");
  };
  host.batch_tensor = [](capstan_batch*, capstan_str, capstan_tensor*, capstan_error* error) {
    return no_engine(error, "batch_tensor");
  };
  host.batch_set_tensor = [](capstan_batch*, capstan_str, capstan_tensor, capstan_error* error) {
    return no_engine(error, "batch_set_tensor");
  };
  host.batch_number = [](capstan_batch*, capstan_str, double*, int*, capstan_error* error) {
    return no_engine(error, "batch_number");
  };
  host.batch_set_number = [](capstan_batch*, capstan_str, double, capstan_error* error) {
    return no_engine(error, "batch_set_number");
  };
  host.batch_visit = [](capstan_batch*, const capstan_visitor*, capstan_error* error) {
    return no_engine(error, "batch_visit");
  };
  host.layer = [](capstan_batch*, const capstan_layer_call*, const capstan_inner*, capstan_tensor*,
                  capstan_error* error) { return no_engine(error, "layer"); };
  host.recompute = [](capstan_batch*, const capstan_layer_call*, const capstan_inner*, const capstan_recompute*,
                      capstan_tensor*, capstan_error* error) { return no_engine(error, "recompute"); };
  host.layer_names = [](void*, void*, void (*)(void*, capstan_str), capstan_error* error) {
    return no_engine(error, "layer_names");
  };
  host.record = [](void*, capstan_str, double, capstan_error* error) { return no_engine(error, "record"); };
  host.difficulty = [](void*, capstan_str, std::int64_t, std::int64_t*, capstan_error* error) {
    return no_engine(error, "difficulty");
  };
  host.tell = [](void*, capstan_str, double, capstan_error* error) { return no_engine(error, "tell"); };
  host.told = [](void*, capstan_str, double*, int*, capstan_error* error) { return no_engine(error, "told"); };
  host.want_curvature = [](void*, capstan_error* error) { return no_engine(error, "want_curvature"); };
  host.hessian_vector = [](void*, const capstan_str*, const capstan_tensor*, capstan_tensor*, std::size_t,
                           capstan_error* error) { return no_engine(error, "hessian_vector"); };
  host.visit_parameters = [](void*, const capstan_visitor*, capstan_error* error) {
    return no_engine(error, "visit_parameters");
  };
  host.open_tokenizer = [](void*, capstan_str, capstan_tokenizer**, capstan_error* error) {
    return no_engine(error, "open_tokenizer");
  };
  // Without a tokenizer the functions about one cannot be called.
  host.close_tokenizer = [](capstan_tokenizer*) {};
  host.tokenizer_facts = [](capstan_tokenizer*, capstan_tokenizer_facts*, capstan_error* error) {
    return no_engine(error, "tokenizer_facts");
  };
  host.find_token = [](capstan_tokenizer*, capstan_str, std::int32_t*, capstan_error* error) {
    return no_engine(error, "find_token");
  };
  host.encode_text = [](capstan_tokenizer*, capstan_str, void*, void (*)(void*, const std::int32_t*, std::size_t),
                        capstan_error* error) { return no_engine(error, "encode_text"); };
  host.decode_tokens = [](capstan_tokenizer*, const std::int32_t*, std::size_t, int, void*,
                          void (*)(void*, capstan_str),
                          capstan_error* error) { return no_engine(error, "decode_tokens"); };
  return host;
}

}  // namespace capstan

#include "core/model/decoding.hpp"

#include "core/errors.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {

Decoding::Decoding(const DecodeFunctions& functions, std::int64_t sequences, std::int64_t capacity)
    : functions_(functions), sequences_(sequences) {
  call_plugin(function("training"), "model '" + functions_.description + "', training",
              [&](capstan_error* error) { return functions_.vtable->training(functions_.self, 0, error); });
  call_plugin(function("begin_decode"), "model '" + functions_.description + "', begin_decode",
              [&](capstan_error* error) {
                return functions_.vtable->begin_decode(functions_.self, static_cast<std::size_t>(sequences), capacity,
                                                       &cache_, error);
              });
}

Decoding::~Decoding() { functions_.vtable->end_decode(functions_.self, cache_); }

PluginFunction Decoding::function(const char* name) const {
  return functions_.component ? functions_.component->function(name) : PluginFunction{};
}

bool Decoding::takes_short_rows(const Model& model) {
  const Json facts = model.describe();
  const Json* takes = facts.find("ragged_decode");
  return takes != nullptr && takes->is_bool() && takes->as_bool();
}

at::Tensor Decoding::logits_of_rows(const at::Tensor& ids, std::int64_t rows) {
  const std::string where = "model '" + functions_.description + "', decode";
  capstan_tensor handle = nullptr;
  call_plugin(function("decode"), where, [&](capstan_error* error) {
    return functions_.vtable->decode(functions_.self, cache_, handle_of(ids), &handle, error);
  });
  at::Tensor logits = take_tensor(handle);
  if (!logits.defined() || logits.dim() != 2 || logits.size(0) != rows || !logits.is_floating_point()) {
    throw PluginError(where + ": must give floating-point logits of shape [" + std::to_string(rows) +
                      ", vocab_size], got " + (logits.defined() ? c10::str(logits.sizes()) : "no tensor") + ".");
  }
  return logits;
}

}  // namespace capstan

// An observer of layers as it was built with the SDK of ABI 1.2: its table ends behind `load`. What lies there would
// crash whoever called it.
#include <cstddef>
#include <cstdint>

#include "capstan/plugin.h"

namespace {

/// The struct of 1.2, as sdk/abi/v1.2.layout has it.
struct Table {
  std::uint32_t struct_size;
  void* before_layer[4];  // event, selects_weight, transform_weight, rewrite_operand
  capstan_status (*layer)(void*, capstan_str, capstan_tensor, const capstan_inner*, capstan_tensor*, capstan_error*);
  void* behind_layer[3];  // batch, save, load
};
static_assert(offsetof(Table, layer) == offsetof(capstan_observer, layer));
static_assert(sizeof(Table) == offsetof(capstan_observer, layer_call));

int runs = 0;

capstan_status layer(void*, capstan_str, capstan_tensor hidden, const capstan_inner* inner, capstan_tensor* out,
                     capstan_error* error) {
  ++runs;
  return inner->run(inner->ctx, hidden, out, error);
}

capstan_status create(const capstan_host*, capstan_str, void** self, capstan_error*) {
  *self = &runs;
  return CAPSTAN_OK;
}

void destroy(void*) {}

struct {
  Table table = {sizeof(Table), {}, &layer, {}};
  std::uintptr_t behind[4] = {0xdead, 0xdead, 0xdead, 0xdead};
} const kLayers;

const capstan_component kComponent = {sizeof(capstan_component),
                                      CAPSTAN_LITERAL("observer"),
                                      CAPSTAN_LITERAL("older_layers"),
                                      &create,
                                      &destroy,
                                      &kLayers.table};

}  // namespace

extern "C" {
extern const char capstan_manifest[] __attribute__((visibility("hidden")));
__attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static const capstan_component* const components[] = {&kComponent};
  static const capstan_plugin plugin = {sizeof(capstan_plugin), 1, 2, capstan_manifest, components, 1};
  return &plugin;
}
}

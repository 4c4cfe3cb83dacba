// An observer whose table ends behind `event`. The numbers behind it would crash whoever called them.
#include <cstddef>
#include <cstdint>

#include "capstan/plugin.h"

namespace {

struct Table {
  std::uint32_t struct_size;
  capstan_status (*event)(void*, const capstan_event*, capstan_error*);
};
static_assert(offsetof(Table, event) == offsetof(capstan_observer, event));
static_assert(sizeof(Table) == offsetof(capstan_observer, layer));

/// Fails in its third event, so that a test sees that it was called.
capstan_status event(void* self, const capstan_event*, capstan_error*) {
  return ++*static_cast<int*>(self) == 3 ? CAPSTAN_FAILED : CAPSTAN_OK;
}

capstan_status create(const capstan_host*, capstan_str, void** self, capstan_error*) {
  *self = new int(0);
  return CAPSTAN_OK;
}

void destroy(void* self) { delete static_cast<int*>(self); }

struct {
  Table table = {sizeof(Table), &event};
  std::uintptr_t behind[8] = {0xdead, 0xdead, 0xdead, 0xdead, 0xdead, 0xdead, 0xdead, 0xdead};
} const kEvents;

constexpr capstan_component kComponents[] = {{sizeof(capstan_component), CAPSTAN_LITERAL("observer"),
                                              CAPSTAN_LITERAL("older_events"), &create, &destroy, &kEvents.table},
                                             {sizeof(capstan_component), CAPSTAN_LITERAL("observer"),
                                              CAPSTAN_LITERAL("older_layers"), &create, &destroy, &kEvents.table}};

}  // namespace

extern "C" {
extern const char capstan_manifest[] __attribute__((visibility("hidden")));
__attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static const capstan_component* const components[] = {&kComponents[0], &kComponents[1]};
  static const capstan_plugin plugin = {sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR,
                                        capstan_manifest,       components,        2};
  return &plugin;
}
}

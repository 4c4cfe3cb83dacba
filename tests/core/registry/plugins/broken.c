/* Plugins that break one rule each, by BREAK_<RULE>. */
#include <stddef.h>

#include "capstan/plugin.h"

extern const char capstan_manifest[] __attribute__((visibility("hidden")));

#ifdef BREAK_DEPENDENCY
extern int capstan_absent(void);
#endif
#ifdef BREAK_SYMBOL
extern int _Z14nowhere_at_alli(int); /* nowhere_at_all(int) */
#endif

static capstan_status create(const capstan_host* host, capstan_str params, void** self, capstan_error* error) {
  (void)host, (void)params, (void)error;
  *self = NULL;
#ifdef BREAK_DEPENDENCY
  capstan_absent();
#endif
#ifdef BREAK_SYMBOL
  _Z14nowhere_at_alli(1);
#endif
#ifdef BREAK_SILENCE
  return CAPSTAN_FAILED;
#else
  return CAPSTAN_OK;
#endif
}

static void destroy(void* self) { (void)self; }

#ifdef BREAK_FUNCTION
static const capstan_monitor monitor = {sizeof(capstan_monitor), NULL, NULL, NULL, NULL};
#else
static capstan_status write_metrics(void* self, const capstan_metric* const* metrics, size_t count,
                                    capstan_error* error) {
  (void)self, (void)metrics, (void)count, (void)error;
  return CAPSTAN_OK;
}

static const capstan_monitor monitor = {sizeof(capstan_monitor), NULL, write_metrics, NULL, NULL};
#endif

#ifdef BREAK_NAME
#define TYPE {"Other", 5}
#else
#define TYPE {"Broken", 6}
#endif

static const capstan_component component = {
#ifdef BREAK_COMPONENT
    8,
#else
    sizeof(capstan_component),
#endif
    {"monitor", 7}, TYPE, create, destroy, &monitor};

static const capstan_component* const components[] = {&component};

#ifndef BREAK_ENTRY
__attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static capstan_plugin plugin = {sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR, NULL, components, 1};
  plugin.manifest = capstan_manifest;
#ifdef BREAK_MANIFEST
  plugin.manifest = "schema = 1";
#endif
#ifdef BREAK_ABI
  plugin.abi_minor = 99;
#endif
#ifdef BREAK_DESCRIPTOR
  plugin.struct_size = 12;
#endif
#ifdef BREAK_COUNT
  plugin.component_count = 0;
#endif
  return &plugin;
}
#else
const void* keep(void) { return components; }
#endif

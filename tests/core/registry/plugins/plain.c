/* A monitor in plain C, whole: the ABI needs no C++. */
#include <stdlib.h>
#include <string.h>

#include "capstan/plugin.h"

extern const char capstan_manifest[] __attribute__((visibility("hidden")));

typedef struct {
  const capstan_host* host;
  double every;
} plain;

static capstan_str str(const char* text) {
  const capstan_str made = {text, strlen(text)};
  return made;
}

static capstan_status create(const capstan_host* host, capstan_str params, void** self, capstan_error* error) {
  double every = 0;
  if (host->json_number(params, str("/every"), &every, error) != CAPSTAN_OK) return CAPSTAN_FAILED;
  if (every == 13) {
    host->set_error(error, str("every: 13 is unlucky"));
    return CAPSTAN_FAILED;
  }
  plain* made = malloc(sizeof *made);
  made->host = host;
  made->every = every;
  *self = made;
  return CAPSTAN_OK;
}

static void destroy(void* self) { free(self); }

static capstan_status write_metrics(void* self, const capstan_metric* const* metrics, size_t count,
                                    capstan_error* error) {
  (void)self, (void)metrics, (void)count, (void)error;
  return CAPSTAN_OK;
}

static const capstan_monitor monitor = {sizeof(capstan_monitor), NULL, write_metrics, NULL, NULL};

static const capstan_component component = {
    sizeof(capstan_component), {"monitor", 7}, {"Plain", 5}, create, destroy, &monitor};

static const capstan_component* const components[] = {&component};

__attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static capstan_plugin plugin = {sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR, NULL, components, 1};
  plugin.manifest = capstan_manifest;
  return &plugin;
}

/* A schedule in plain C: all that crosses between the engine and it stands in capstan/plugin.h. */
#include "template_plugin.h"

#include <capstan/plugin.h>
#include <stdlib.h>

/* plugin.toml, which the build puts into the file. */
extern const char capstan_manifest[] __attribute__((visibility("hidden")));

typedef struct {
  double warmup_updates, half_life;
} schedule;

/* The parameters were checked against plugin.toml and completed from it; json_number fails with a text of its own. */
static capstan_status create(const capstan_host* host, capstan_str params, void** self, capstan_error* error) {
  schedule read;
  if (host->json_number(params, CAPSTAN_STR("/warmup_updates"), &read.warmup_updates, error) != CAPSTAN_OK ||
      host->json_number(params, CAPSTAN_STR("/half_life"), &read.half_life, error) != CAPSTAN_OK) {
    return CAPSTAN_FAILED;
  }
  schedule* made = malloc(sizeof *made);
  if (made == NULL) {
    host->set_error(error, CAPSTAN_STR("out of memory"));
    return CAPSTAN_FAILED;
  }
  *made = read;
  *self = made;
  return CAPSTAN_OK;
}

static void destroy(void* self) { free(self); }

static capstan_status rate(void* self, int64_t update_index, uint32_t group, double base_lr, double* out,
                           capstan_error* error) {
  const schedule* s = self;
  (void)group, (void)error;
  *out = template_plugin_rate(update_index, base_lr, s->warmup_updates, s->half_life);
  return CAPSTAN_OK;
}

/* A function that is null is not called. */
static const capstan_scheduler scheduler = {.struct_size = sizeof(capstan_scheduler), .rate = rate};

static const capstan_component component = {.struct_size = sizeof(capstan_component),
                                            .kind = CAPSTAN_LITERAL("scheduler"),
                                            .type = CAPSTAN_LITERAL("TemplatePlugin"),
                                            .create = create,
                                            .destroy = destroy,
                                            .vtable = &scheduler};

static const capstan_component* const components[] = {&component};

__attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static const capstan_plugin plugin = {sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR,
                                        capstan_manifest,       components,        1};
  return &plugin;
}

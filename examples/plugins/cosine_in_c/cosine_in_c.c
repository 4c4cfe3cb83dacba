/* A schedule in plain C: everything that crosses the boundary stands in capstan/plugin.h. */
#include <capstan/plugin.h>
#include <math.h>
#include <stdlib.h>

extern const char capstan_manifest[] __attribute__((visibility("hidden")));

typedef struct {
  double period, growth, floor;
} schedule;

/* The parameters were checked against plugin.toml and completed from it; json_number fails with a text of its own. */
static capstan_status create(const capstan_host* host, capstan_str params, void** self, capstan_error* error) {
  schedule read;
  if (host->json_number(params, CAPSTAN_STR("/period"), &read.period, error) != CAPSTAN_OK ||
      host->json_number(params, CAPSTAN_STR("/growth"), &read.growth, error) != CAPSTAN_OK ||
      host->json_number(params, CAPSTAN_STR("/floor"), &read.floor, error) != CAPSTAN_OK) {
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

/* Pure: the period that an update falls into follows from its index alone. */
static capstan_status rate(void* self, int64_t update_index, uint32_t group, double base_lr, double* out,
                           capstan_error* error) {
  const schedule* s = self;
  double into = (double)update_index;
  double length = s->period;
  (void)group, (void)error;
  if (s->growth == 1) {
    into = fmod(into, length);
  } else {
    /* The periods before number n have period * (growth^n - 1) / (growth - 1) updates. */
    const double n = floor(log1p(into * (s->growth - 1) / s->period) / log(s->growth));
    length = s->period * pow(s->growth, n);
    into -= s->period * (pow(s->growth, n) - 1) / (s->growth - 1);
  }
  const double share = fmin(fmax(into / length, 0), 1);
  *out = base_lr * (s->floor + (1 - s->floor) * 0.5 * (1 + cos(3.14159265358979323846 * share)));
  return CAPSTAN_OK;
}

static const capstan_scheduler scheduler = {sizeof(capstan_scheduler), rate, NULL, NULL, NULL, NULL};

static const capstan_component component = {sizeof(capstan_component),
                                            CAPSTAN_LITERAL("scheduler"),
                                            CAPSTAN_LITERAL("CosineRestarts"),
                                            create,
                                            destroy,
                                            &scheduler};

static const capstan_component* const components[] = {&component};

__attribute__((visibility("default"))) const capstan_plugin* capstan_plugin_v1(void) {
  static const capstan_plugin plugin = {sizeof(capstan_plugin), CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR,
                                        capstan_manifest,       components,        1};
  return &plugin;
}

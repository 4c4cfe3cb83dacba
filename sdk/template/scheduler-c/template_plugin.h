#ifndef TEMPLATE_PLUGIN_H
#define TEMPLATE_PLUGIN_H

#include <math.h>
#include <stdint.h>

/* The rate of update `index` (0 for the first). Pure: no counter of its own, so resuming needs nothing. */
static inline double template_plugin_rate(int64_t index, double base_lr, double warmup_updates, double half_life) {
  /* The first update already trains, so it gets 1/n of the way, not 0/n. */
  if ((double)index < warmup_updates) return base_lr * (double)(index + 1) / warmup_updates;
  return base_lr * exp2(-((double)index - warmup_updates) / half_life);
}

#endif

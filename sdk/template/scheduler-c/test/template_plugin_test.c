#include "template_plugin.h"

#include <stdio.h>
#include <stdlib.h>

static void expect_near(const char* what, double found, double wanted) {
  if (fabs(found - wanted) <= 1e-12) return;
  printf("%s: found %g, wanted %g\n", what, found, wanted);
  exit(1);
}

int main(void) {
  expect_near("first update", template_plugin_rate(0, 1.0, 4, 10.0), 0.25);
  expect_near("end of the warm-up", template_plugin_rate(3, 1.0, 4, 10.0), 1.0);
  expect_near("after one half-life", template_plugin_rate(14, 1.0, 4, 10.0), 0.5);
  expect_near("without a warm-up", template_plugin_rate(0, 2.0, 0, 10.0), 2.0);
  return 0;
}

#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void expect_near(const char* what, float found, float wanted) {
  if (std::fabs(found - wanted) <= 1e-6f) return;
  std::printf("%s: found %g, wanted %g\n", what, found, wanted);
  std::exit(1);
}

}  // namespace

int main() {
  const float values[] = {-2.0f, 0.4f, 0.6f};
  const float step = template_plugin_step(values, 3, 2);
  expect_near("step", step, 1.0f);
  expect_near("nearest level below", template_plugin_round(0.4f, step), 0.0f);
  expect_near("nearest level above", template_plugin_round(0.6f, step), 1.0f);
  expect_near("largest", template_plugin_round(-2.0f, step), -2.0f);

  const float zeros[] = {0.0f, 0.0f};
  expect_near("zeros", template_plugin_round(0.0f, template_plugin_step(zeros, 2, 127)), 0.0f);
}

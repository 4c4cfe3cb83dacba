#include "template_plugin.hpp"

#include <cmath>
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
  const TemplatePluginNumbers numbers{.lr = 0.1f, .momentum = 0.5f, .weight_decay = 0.2f};
  float weight = 1.0f, mean = 0.0f;

  template_plugin_element(weight, mean, 4.0f, numbers);
  expect_near("mean", mean, 2.0f);
  expect_near("weight", weight, 1.0f - 0.1f * (1.0f + 0.2f * 1.0f));

  weight = 1.0f, mean = 0.0f;
  template_plugin_element(weight, mean, 0.0f, numbers);
  expect_near("weight without a gradient", weight, 1.0f - 0.1f * 0.2f);
}

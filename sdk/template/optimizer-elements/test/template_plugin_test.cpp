#define CAPSTAN_RULES_ON_DEVICE
#include "template_plugin.cpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace {

void expect_near(const char* what, float found, float wanted) {
  if (std::fabs(found - wanted) <= 1e-6f) return;
  std::printf("%s: found %g, wanted %g\n", what, static_cast<double>(found), static_cast<double>(wanted));
  std::exit(1);
}

}  // namespace

int main() {
  const capstan::elements::TemplatePluginRule rule{0.5f, 0.1f, 0.5f, 0.2f};
  float weight = 1.0f, mean = 0.0f;
  rule(weight, 8.0f, &mean);
  expect_near("mean", mean, 2.0f);
  expect_near("weight", weight, 1.0f - 0.1f * (1.0f + 0.2f * 1.0f));

  weight = 1.0f, mean = 0.0f;
  rule(weight, 0.0f, &mean);
  expect_near("weight without a gradient", weight, 1.0f - 0.1f * 0.2f);
}

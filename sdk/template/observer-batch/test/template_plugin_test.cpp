#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("not so: %s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  int below = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) below += template_plugin_draw(1, 0, i) < 0.1;

  expect(below > 900 && below < 1100, "a tenth of the draws is below 0.1");
  expect(template_plugin_draw(1, 2, 3) == template_plugin_draw(1, 2, 3), "the same arguments give the same draw");
  expect(template_plugin_draw(1, 2, 3) != template_plugin_draw(1, 3, 3), "another batch gives another draw");
  expect(template_plugin_draw(1, 2, 3) != template_plugin_draw(2, 2, 3), "another seed gives another draw");
}

#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("%s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  const std::vector<double> predictions = {3, 1, 2, 0.5};
  std::mt19937_64 random(1);
  expect(template_plugin_choice({0, 1, 2}, predictions, 0, random) == 1, "the least prediction of those left");
  expect(template_plugin_choice({0, 2}, predictions, 0, random) == 2, "one that was chosen does not count");
  bool others = false;
  for (int i = 0; i < 50; ++i) others = others || template_plugin_choice({0, 1, 2}, predictions, 1, random) != 1;
  expect(others, "a curious one chooses others too");
}

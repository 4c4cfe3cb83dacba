#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void expect_equal(const char* what, double found, double wanted) {
  if (found == wanted) return;
  std::printf("%s: found %g, wanted %g\n", what, found, wanted);
  std::exit(1);
}

}  // namespace

int main() {
  expect_equal("scale of 4 bits", template_plugin_scale(3.5, 4), 0.5);
  expect_equal("scale of a row of zeros", template_plugin_scale(0.0, 4), 1.0);
  expect_equal("the largest value", template_plugin_code(3.5f, 0.5f, 4), 7);
  expect_equal("a value between two codes", template_plugin_code(-0.6f, 0.5f, 4), -1);
  expect_equal("a small value", template_plugin_code(0.2f, 0.5f, 4), 0);
}

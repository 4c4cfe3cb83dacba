#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void expect_equal(const char* what, std::int64_t found, std::int64_t wanted) {
  if (found == wanted) return;
  std::printf("%s: found %lld, wanted %lld\n", what, static_cast<long long>(found), static_cast<long long>(wanted));
  std::exit(1);
}

}  // namespace

int main() {
  expect_equal("all alike", template_plugin_variety(std::vector<std::int64_t>{7, 7, 7, 7}, 1000), 250);
  expect_equal("all different", template_plugin_variety(std::vector<std::int64_t>{1, 2, 3, 4}, 1000), 1000);
  expect_equal("two of three", template_plugin_variety(std::vector<std::int64_t>{1, 2, 1}, 100), 66);
  expect_equal("none", template_plugin_variety({}, 1000), 0);
}

#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void expect_equal(const char* what, std::int64_t found, std::int64_t wanted) {
  if (found == wanted) return;
  std::printf("%s: found %lld, wanted %lld\n", what, static_cast<long long>(found), static_cast<long long>(wanted));
  std::exit(1);
}

}  // namespace

int main() {
  expect_equal("first step", template_plugin_difficulty(1, 8, 1024, 10), 8);
  expect_equal("last step before the doubling", template_plugin_difficulty(10, 8, 1024, 10), 8);
  expect_equal("after one doubling", template_plugin_difficulty(11, 8, 1024, 10), 16);
  expect_equal("at the end", template_plugin_difficulty(1000000, 8, 1000, 10), 1000);
}

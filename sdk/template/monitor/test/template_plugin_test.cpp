#include "template_plugin.hpp"

#include <cstdlib>

namespace {

void expect_equal(const std::string& found, const std::string& wanted) {
  if (found == wanted) return;
  std::printf("found  %swanted %s", found.c_str(), wanted.c_str());
  std::exit(1);
}

}  // namespace

int main() {
  expect_equal(template_plugin_line("Train/Samples/lr", 32, 0.5),
               "{\"tag\": \"Train/Samples/lr\", \"x\": 32, \"value\": 0.5}\n");
  expect_equal(template_plugin_line("a \"b\"\n", -1, NAN), "{\"tag\": \"a \\\"b\\\" \", \"x\": -1, \"value\": null}\n");
}

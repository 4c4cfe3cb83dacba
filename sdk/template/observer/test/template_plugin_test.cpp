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
  TemplatePluginDetector detector(5.0);

  expect(!detector.is_jump(1.0), "the first norm is not a jump");
  expect(!detector.is_jump(4.9), "a norm below five times the mean is not a jump");
  expect(detector.is_jump(100.0), "a norm far above the mean is a jump");
  expect(!detector.is_jump(NAN), "what is not a number is not a jump");
}

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
  const auto lines = template_plugin_lines("ab\n\nc");
  expect(lines.size() == 2 && lines[0] == "ab" && lines[1] == "c", "lines are cut wrongly");
  std::int64_t inputs[3], labels[3];
  template_plugin_sample("ab", 3, 9, inputs, labels);
  expect(inputs[0] == 'a' && inputs[1] == 'b' && inputs[2] == 9, "a short line is not filled up");
  expect(labels[0] == 'b' && labels[1] == -100 && labels[2] == -100, "labels are not the tokens that follow");
  template_plugin_sample("abcd", 3, 9, inputs, labels);
  expect(inputs[2] == 'c' && labels[2] == 'd', "a long line is not cut");
}

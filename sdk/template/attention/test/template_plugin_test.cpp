#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

void expect_row(std::uint32_t row, const std::string& wanted) {
  std::string found;
  for (std::uint32_t column = 0; column < wanted.size(); ++column) {
    found += template_plugin_attends(row, column, 2, 3) ? '#' : '.';
  }
  if (found == wanted) return;
  std::printf("row %u: found %s, wanted %s\n", row, found.c_str(), wanted.c_str());
  std::exit(1);
}

}  // namespace

int main() {
  expect_row(0, "#.......");
  expect_row(1, "##......");
  expect_row(3, "#.##....");
  expect_row(7, ".#..#.##");
}

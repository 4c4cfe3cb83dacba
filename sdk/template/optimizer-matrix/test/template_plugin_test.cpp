#include "template_plugin.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void expect_near(const char* what, float found, float wanted) {
  if (std::fabs(found - wanted) <= 1e-5f) return;
  std::printf("%s: found %g, wanted %g\n", what, found, wanted);
  std::exit(1);
}

}  // namespace

int main() {
  std::vector<float> matrix = {3, 0, 1, 1, 2, 0};
  template_plugin_orthogonalize(matrix, 2, 30);
  expect_near("length of row 0", matrix[0] * matrix[0] + matrix[1] * matrix[1] + matrix[2] * matrix[2], 1);
  expect_near("length of row 1", matrix[3] * matrix[3] + matrix[4] * matrix[4] + matrix[5] * matrix[5], 1);
  expect_near("product of the rows", matrix[0] * matrix[3] + matrix[1] * matrix[4] + matrix[2] * matrix[5], 0);

  std::vector<float> zeros(6);
  template_plugin_orthogonalize(zeros, 2, 5);
  expect_near("zeros", zeros[3], 0);
}

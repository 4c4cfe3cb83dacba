#include "power_iteration.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/nan_to_num.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace capstan::eigenvalue {
namespace {

double inner_product(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += at::dot(a[i].reshape({-1}).to(at::kDouble), b[i].reshape({-1}).to(at::kDouble)).item<double>();
  }
  return sum;
}

/// v / (|v| + stability), without what is not finite.
void normalize(Vector& v, double stability) {
  const double norm = std::sqrt(inner_product(v, v)) + stability;
  for (at::Tensor& one : v) one = at::nan_to_num(one.div(norm), 0.0, 0.0, 0.0);
}

}  // namespace

Found largest_eigenvalue(const std::function<Vector(const Vector&)>& multiply, Vector start, const Iteration& how) {
  const at::NoGradGuard no_grad;
  Vector v = std::move(start);
  normalize(v, how.stability);
  Found found;
  double before = 0;
  while (found.products < how.max_iter) {
    Vector product = multiply(v);
    before = std::exchange(found.eigenvalue, inner_product(product, v));
    if (++found.products == 1) found.first = found.eigenvalue;
    if (found.eigenvalue == 0) break;
    // One quotient has none before it to be compared with.
    if (found.products > 1 && std::abs((found.eigenvalue - before) / found.eigenvalue) < how.tol) break;
    v = std::move(product);
    normalize(v, how.stability);
  }
  return found;
}

std::vector<double> relative_magnitudes(const std::vector<double>& eigenvalues) {
  double largest = 0;
  for (const double one : eigenvalues) largest = std::max(largest, std::abs(one));
  std::vector<double> made;
  for (const double one : eigenvalues) made.push_back(one == 0 ? 1 : std::abs(one) / largest);
  return made;
}

}  // namespace capstan::eigenvalue

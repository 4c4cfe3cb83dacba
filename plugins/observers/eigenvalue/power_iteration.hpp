#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace capstan::eigenvalue {

/// A vector whose parts have the shapes of parameters, float32.
using Vector = std::vector<at::Tensor>;

struct Iteration {
  std::int64_t max_iter = 100;
  double tol = 0.01;        // a relative change of the quotient that ends it
  double stability = 1e-6;  // added to norms
};

struct Found {
  double eigenvalue = 0;
  double first = 0;  // the first quotient
  std::int64_t products = 0;
};

/// The eigenvalue of largest magnitude of a symmetric matrix, of which `multiply` gives products, by power iteration
/// from `start`: the quotient <H v, v> of unit vectors v. 0 where a product is 0.
Found largest_eigenvalue(const std::function<Vector(const Vector&)>& multiply, Vector start, const Iteration& how);

/// |eigenvalue| over the largest of them; 1 for one that is 0.
std::vector<double> relative_magnitudes(const std::vector<double>& eigenvalues);

}  // namespace capstan::eigenvalue

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <torch/library.h>

#include <vector>

// Operators on lists of tensors that plugins reach through the stable ABI of LibTorch, which converts doubles and no
// at::Scalar (as of 2.11). Each calls LibTorch's operator of the same name, so that a device has its own kernels there.
namespace capstan {
namespace {

std::vector<at::Scalar> scalars(at::ArrayRef<double> numbers) { return {numbers.begin(), numbers.end()}; }

void check_numbers(at::TensorList self, at::ArrayRef<double> numbers) {
  TORCH_CHECK(self.size() == numbers.size(), "a list of ", self.size(), " tensors takes as many numbers, got ",
              numbers.size(), ".");
}

/// Calls function(tensors, others, number) for each number that occurs, with the pairs of tensors that have it:
/// LibTorch's operator takes one number.
template <class Function>
void for_each_number(at::TensorList self, at::TensorList other, at::ArrayRef<double> numbers, Function&& function) {
  const at::NoGradGuard no_grad;
  check_numbers(self, numbers);
  TORCH_CHECK(self.size() == other.size(), "lists of ", self.size(), " and of ", other.size(), " tensors.");
  std::vector<bool> done(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (done[i]) continue;
    std::vector<at::Tensor> tensors, others;
    for (std::size_t k = i; k < numbers.size(); ++k) {
      if (numbers[k] != numbers[i] && k != i) continue;  // a NaN equals itself nowhere else
      done[k] = true;
      tensors.push_back(self[k]);
      others.push_back(other[k]);
    }
    function(tensors, others, numbers[i]);
  }
}

void list_mul_(at::TensorList self, at::ArrayRef<double> factors) {
  const at::NoGradGuard no_grad;
  check_numbers(self, factors);
  at::_foreach_mul_(self, scalars(factors));
}

void list_add_number_(at::TensorList self, at::ArrayRef<double> numbers) {
  const at::NoGradGuard no_grad;
  check_numbers(self, numbers);
  at::_foreach_add_(self, scalars(numbers));
}

void list_clamp_min_(at::TensorList self, at::ArrayRef<double> least) {
  const at::NoGradGuard no_grad;
  check_numbers(self, least);
  at::_foreach_clamp_min_(self, scalars(least));
}

void list_add_(at::TensorList self, at::TensorList other, at::ArrayRef<double> alphas) {
  for_each_number(self, other, alphas, [](at::TensorList tensors, at::TensorList others, double alpha) {
    at::_foreach_add_(tensors, others, alpha);
  });
}

void list_lerp_(at::TensorList self, at::TensorList end, at::ArrayRef<double> weights) {
  for_each_number(self, end, weights, [](at::TensorList tensors, at::TensorList ends, double weight) {
    at::_foreach_lerp_(tensors, ends, weight);
  });
}

void list_addcmul_(at::TensorList self, at::TensorList a, at::TensorList b, at::ArrayRef<double> values) {
  const at::NoGradGuard no_grad;
  check_numbers(self, values);
  at::_foreach_addcmul_(self, a, b, scalars(values));
}

void list_addcdiv_(at::TensorList self, at::TensorList a, at::TensorList b, at::ArrayRef<double> values) {
  const at::NoGradGuard no_grad;
  check_numbers(self, values);
  at::_foreach_addcdiv_(self, a, b, scalars(values));
}

std::vector<at::Tensor> list_norm(at::TensorList self) {
  const at::NoGradGuard no_grad;
  return at::_foreach_norm(self, 2, at::kFloat);
}

}  // namespace
}  // namespace capstan

namespace {

// A program may load the engine and the conformance kit, which both have this file: the first one registers.
bool is_registered() { return c10::Dispatcher::singleton().findSchema({"capstan::list_mul_", ""}).has_value(); }
const bool kRegisteredBefore = is_registered();

}  // namespace

TORCH_LIBRARY_FRAGMENT(capstan, m) {
  if (kRegisteredBefore) return;
  m.def("list_mul_(Tensor(a!)[] self, float[] factors) -> ()");
  m.def("list_add_number_(Tensor(a!)[] self, float[] numbers) -> ()");
  m.def("list_clamp_min_(Tensor(a!)[] self, float[] least) -> ()");
  m.def("list_add_(Tensor(a!)[] self, Tensor[] other, float[] alphas) -> ()");
  m.def("list_lerp_(Tensor(a!)[] self, Tensor[] end, float[] weights) -> ()");
  m.def("list_addcmul_(Tensor(a!)[] self, Tensor[] a, Tensor[] b, float[] values) -> ()");
  m.def("list_addcdiv_(Tensor(a!)[] self, Tensor[] a, Tensor[] b, float[] values) -> ()");
  m.def("list_norm(Tensor[] self) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(capstan, CompositeExplicitAutograd, m) {
  if (kRegisteredBefore) return;
  m.impl("list_mul_", &capstan::list_mul_);
  m.impl("list_add_number_", &capstan::list_add_number_);
  m.impl("list_clamp_min_", &capstan::list_clamp_min_);
  m.impl("list_add_", &capstan::list_add_);
  m.impl("list_lerp_", &capstan::list_lerp_);
  m.impl("list_addcmul_", &capstan::list_addcmul_);
  m.impl("list_addcdiv_", &capstan::list_addcdiv_);
  m.impl("list_norm", &capstan::list_norm);
}

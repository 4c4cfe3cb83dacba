// first_forward_task [prepared]: whether the first forward of this process has the bits of the second. Ends with 1
// where it has not. `prepared`: after prepare_vector_math().

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <cstdio>
#include <string_view>

#include "core/memory/vector_math.hpp"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "prepared") capstan::prepare_vector_math();
  const at::Tensor vectors = at::randn({257, 16}), inner = at::randn({64, 128}), head = at::randn({256, 64});
  const at::Tensor tokens = at::randint(256, {4, 64}), labels = at::randint(256, {256});
  const auto forward = [&](at::Tensor* hidden) {
    const at::Tensor windows = at::constant_pad_nd(tokens, {7, 0}, 256).unfold(1, 8, 1);
    *hidden = at::linear(at::embedding(vectors, windows).flatten(2), inner * 0.1).tanh();
    return at::cross_entropy_loss(at::linear(*hidden, head * 0.1).view({-1, 256}), labels);
  };
  at::Tensor first_hidden, hidden;
  const at::Tensor first = forward(&first_hidden), second = forward(&hidden);
  if (first_hidden.equal(hidden) && first.equal(second)) return 0;
  std::printf("%ld of %ld elements of tanh differ, by at most %g; losses %.9g and %.9g\n",
              static_cast<long>(first_hidden.ne(hidden).sum().item<std::int64_t>()), static_cast<long>(hidden.numel()),
              (first_hidden - hidden).abs().max().item<double>(), first.item<double>(), second.item<double>());
  return 1;
}

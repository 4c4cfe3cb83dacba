// Whether a LibTorch still asks its autograd engine for hooks of the tensors that it saves: what core/memory/recompute
// stands on. Compiled against another LibTorch by scripts/probe_newest_torch.

#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/torch.h>

#include <cstdio>

#include "core/memory/recompute/saved_tensors.hpp"

namespace {

class Taker final : public capstan::SavedTensorTaker {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return std::make_unique<Hooks>(*this); }
  int packed = 0, unpacked = 0;

 private:
  struct Hooks final : torch::autograd::SavedVariableHooks {
    explicit Hooks(Taker& t) : taker(t) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      kept = tensor.tensor_data();
      ++taker.packed;
    }
    at::Tensor call_unpack_hook() override {
      ++taker.unpacked;
      return kept;
    }
    Taker& taker;
    at::Tensor kept;
  };
};

}  // namespace

int main() {
  const at::Tensor w = torch::linspace(-1, 1, 12).view({3, 4}).requires_grad_();
  const auto loss = [&] { return w.matmul(w.t()).sin().softmax(-1).pow(2).sum(); };
  const at::Tensor plain = torch::autograd::grad({loss()}, {w})[0];
  Taker taker;
  at::Tensor with;
  {
    at::Tensor value;
    {
      const capstan::SavedTensorScope scope(&taker);
      value = loss();
    }
    with = torch::autograd::grad({value}, {w})[0];
  }
  const bool result_takes_gradients = capstan::as_result(plain).requires_grad();
  const bool works = taker.packed > 3 && taker.unpacked == taker.packed && with.equal(plain) && result_takes_gradients;
  std::printf("saved tensors: %d packed, %d unpacked, gradients %s\n", taker.packed, taker.unpacked,
              with.equal(plain) ? "equal" : "differ");
  return works ? 0 : 1;
}

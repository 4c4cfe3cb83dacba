// Trains three steps; with a second argument on a stream of the program's own.
//   emulated_own_stream CONFIG [own]

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <capstan/capstan.hpp>
#include <cstdio>
#include <memory>

namespace {

struct Net : torch::nn::Module {
  Net() : in(register_module("in", torch::nn::Linear(16, 64))), out(register_module("out", torch::nn::Linear(64, 4))) {}
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::mse_loss(out(torch::relu(in(x))), y);
  }
  torch::nn::Linear in, out;
};

}  // namespace

int main(int count, char** words) {
  auto engine = capstan::initialize(
      [] {
        torch::manual_seed(7);
        return std::make_shared<Net>();
      },
      [](Net& net, const capstan::BatchView& batch) { return net.loss(batch.tensor("x"), batch.tensor("y")); },
      words[1]);
  const c10::impl::VirtualGuardImpl device(c10::kCUDA);
  if (count > 2) {
    const c10::Device own(c10::kCUDA, static_cast<c10::DeviceIndex>(engine.rank()));
    static_cast<void>(device.exchangeStream(device.getNewStream(own)));
  }
  for (int step = 0; step < 3; ++step) {
    engine.train_batch([&] {
      capstan::Batch batch;
      batch.tensors["x"] = torch::randn({4, 16});
      batch.tensors["y"] = torch::randn({4, 4});
      return batch;
    });
    if (engine.rank() == 0) std::printf("%.9g\n", engine.mean_loss());
  }
}

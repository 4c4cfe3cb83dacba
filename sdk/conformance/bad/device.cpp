// Gradient descent on a device, with mistakes that no test on a CPU shows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <capstan/sdk/device.hpp>
#include <capstan/sdk/launch.hpp>

#include "bad.hpp"

namespace {

namespace sdk = capstan::sdk;

__device__ float widened(float value) { return value; }
__device__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float widened(__half value) { return __half2float(value); }

template <class Gradient>
__global__ void descend(float* weights, const Gradient* gradients, std::size_t count, float step, std::size_t beyond) {
  const std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  weights[i + beyond] -= step * widened(gradients[i]);
}

class Bad {
 public:
  Bad(const sdk::Host& host, const sdk::Params&) : host_(host) {}

  void update(const sdk::Slots& slots, const sdk::Step& step) {
    for (const sdk::Slot slot : slots) {
      const sdk::DeviceSlot device(slot);
      const sdk::Values gradients = device.grad();
      const float size = static_cast<float>(step.group(device.group()).number("lr") * step.grad_scale());
      if (breaks("host_access")) *device.param() += size;
      switch (gradients.dtype) {
        case sdk::Dtype::kBFloat16:
          start<__nv_bfloat16>(device, gradients, size);
          break;
        case sdk::Dtype::kFloat16:
          start<__half>(device, gradients, size);
          break;
        default:
          start<float>(device, gradients, size);
      }
    }
    if (breaks("device_waits")) cudaStreamSynchronize(static_cast<cudaStream_t>(host_.stream()));
  }

 private:
  template <class Gradient>
  void start(const sdk::DeviceSlot& device, const sdk::Values& gradients, float size) {
    constexpr unsigned kThreads = 128;
    constexpr std::size_t kGuard = 64;  // behind the kit's own guard the block ends
    const auto blocks = static_cast<unsigned>((device.numel() + kThreads - 1) / kThreads);
    sdk::launch(descend<Gradient>, blocks, kThreads, static_cast<cudaStream_t>(host_.stream()))(
        device.param(), static_cast<const Gradient*>(gradients.data), device.numel(), size,
        breaks("overrun") ? device.numel() + kGuard : 0);
  }

  sdk::Host host_;
};

}  // namespace

CAPSTAN_PLUGIN(&capstan::sdk::optimizer<Bad, "Bad">)

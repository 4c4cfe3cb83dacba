#include "core/memory/accelerator.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <chrono>

namespace capstan {
namespace {

class CpuEvent final : public DeviceEvent {
 public:
  double milliseconds_since(const DeviceEvent& earlier) const override {
    return std::chrono::duration<double, std::milli>(at_ - static_cast<const CpuEvent&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
};

}  // namespace

at::Tensor CpuAccelerator::allocate(at::IntArrayRef shape, at::ScalarType dtype) const {
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(at::kCPU));
}

void CpuAccelerator::copy(at::Tensor& to, const at::Tensor& from) const {
  at::NoGradGuard no_grad;
  to.copy_(from);
}

std::vector<at::Tensor> CpuAccelerator::to_host(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone(at::MemoryFormat::Contiguous));
  return copies;
}

std::unique_ptr<DeviceEvent> CpuAccelerator::record() const { return std::make_unique<CpuEvent>(); }

}  // namespace capstan

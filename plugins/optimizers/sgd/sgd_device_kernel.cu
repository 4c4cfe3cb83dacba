#include "plugins/optimizers/common/device_sweep.cuh"
#include "plugins/optimizers/sgd/sgd_device_kernel.hpp"

// Stochastic gradient descent with momentum (Sutskever et al. 2013), as torch has it, with the CPU kernel's roundings:
//   g += l2*p;  b = momentum*b + (1-dampening)*g, the first b being g itself;  p -= lr * (nesterov ? g + momentum*b :
//   b)
namespace capstan::optimizers {
namespace {

struct PlainRule {
  SgdNumbers n;
  __device__ void operator()(float& p, float grad, float*) const {
    p = __fmaf_rn(-n.lr, decayed_gradient(p, grad, n.grad_scale, n.l2), p);
  }
};

struct MomentumRule {
  SgdNumbers n;
  __device__ void operator()(float& p, float grad, float* buffer) const {
    const float g = decayed_gradient(p, grad, n.grad_scale, n.l2);
    *buffer = __fmaf_rn(n.keep, *buffer, __fmul_rn(n.take, g));
    p = __fmaf_rn(-n.lr, __fmaf_rn(n.from_buffer, *buffer, __fmul_rn(n.from_gradient, g)), p);
  }
};

}  // namespace

const char* launch_sgd(const DeviceBlock& block, const SgdNumbers& numbers, bool momentum) {
  return momentum ? sweep<1>(block, MomentumRule{numbers}) : sweep<0>(block, PlainRule{numbers});
}

}  // namespace capstan::optimizers

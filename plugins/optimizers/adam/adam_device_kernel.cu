#include "plugins/optimizers/adam/adam_device_kernel.hpp"
#include "plugins/optimizers/common/device_sweep.cuh"

// Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), AMSGrad (Reddi et al. 2018), with the CPU kernel's
// roundings:
//   g += l2 * p;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g^2;
//   p -= lr * ((m/c1) / (sqrt(v/c2) + eps) + decay*p)
namespace capstan::optimizers {
namespace {

template <bool kGreatest>
struct AdamRule {
  AdamNumbers n;

  __device__ void operator()(float& p, float grad, float* state) const {
    const float g = decayed_gradient(p, grad, n.moments.grad_scale, n.moments.l2);
    state[0] = __fmaf_rn(n.moments.beta1, state[0], __fmul_rn(n.moments.one_minus_beta1, g));
    state[1] = __fmaf_rn(n.moments.beta2, state[1], __fmul_rn(n.moments.one_minus_beta2, __fmul_rn(g, g)));
    float second = state[1];
    if constexpr (kGreatest) second = state[2] = fmaxf(state[2], state[1]);
    const float denominator = __fmaf_rn(__fsqrt_rn(second), n.inverse_sqrt_c2, n.eps);
    const float direction = __fmaf_rn(n.decay, p, __fdiv_rn(__fmul_rn(state[0], n.inverse_c1), denominator));
    p = __fmaf_rn(-n.lr, direction, p);
  }
};

}  // namespace

const char* launch_adam(const DeviceBlock& block, const AdamNumbers& numbers, bool amsgrad) {
  return amsgrad ? sweep<3>(block, AdamRule<true>{numbers}) : sweep<2>(block, AdamRule<false>{numbers});
}

}  // namespace capstan::optimizers

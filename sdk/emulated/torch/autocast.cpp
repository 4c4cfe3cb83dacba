// Autocast of a device under PrivateUse1: LibTorch has the lists of operators, and asks the device to register them.

#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

// The lists name types of LibTorch's namespace.
namespace at::autocast {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define CAPSTAN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(CAPSTAN_LOWER_PRECISION)
#define CAPSTAN_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(CAPSTAN_FLOAT32)
#define CAPSTAN_FLOAT32_UNLESS_ASKED(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(CAPSTAN_FLOAT32_UNLESS_ASKED)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define CAPSTAN_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(CAPSTAN_PROMOTE)
}

}  // namespace at::autocast

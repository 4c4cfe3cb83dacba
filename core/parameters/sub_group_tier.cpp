#include "core/parameters/sub_group_tier.hpp"

#include <ATen/ops/empty.h>

namespace capstan {

at::Tensor ResidentTier::allocate(std::int64_t elements, at::ScalarType dtype, bool on_host) {
  return on_host ? at::empty({elements}, dtype) : accelerator_.allocate({elements}, dtype);
}

}  // namespace capstan

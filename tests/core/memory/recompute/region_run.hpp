#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "core/memory/recompute/recomputation.hpp"
#include "core/memory/tensor_handle.hpp"
#include "core/registry/plugin_call.hpp"

namespace capstan {

/// Runs a function as a layer of `recomputation`, as the engine's host does.
inline at::Tensor run_region(Recomputation& recomputation, const std::string& name, const at::Tensor& hidden,
                             const std::function<at::Tensor(const at::Tensor&)>& f,
                             capstan_recompute how = {sizeof(capstan_recompute)}) {
  struct Inner {
    const std::function<at::Tensor(const at::Tensor&)>& f;
    std::exception_ptr thrown;
    static capstan_status run(void* ctx, capstan_tensor input, const capstan_argument* const*, std::size_t,
                              capstan_tensor* out, capstan_error* error) {
      auto& self = *static_cast<Inner*>(ctx);
      return guarded(error, [&] { *out = handle_of(*new at::Tensor(self.f(tensor_of(input)))); });
    }
  } inner{f, nullptr};
  capstan_layer_call call{};
  call.struct_size = sizeof call;
  call.name = as_str(name);
  call.hidden = handle_of(hidden);
  const capstan_inner table{sizeof table, &inner, &Inner::run};
  capstan_tensor out = nullptr;
  recomputation.run(call, table, how, &out);
  return take_tensor(out);
}

}  // namespace capstan

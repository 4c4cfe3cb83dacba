#include "core/model/deferred_model.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include "core/log.hpp"
#include "core/memory/deferred_values.hpp"

namespace capstan {

Model without_values(const std::function<Model()>& build) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor start = generator.get_state();
  try {
    auto values = std::make_shared<DeferredValues>();
    const DeferredValues::Scope scope(*values);
    Model model = build();
    model.set_deferred(std::move(values));
    return model;
  } catch (const std::exception& error) {
    if (!DeferredValues::is_refusal(error.what())) throw;
  }
  log::warning(
      "ZeRO stage 3: the model's construction uses the memory of its parameters without LibTorch's operators "
      "(data_ptr, a thread of its own), so it is built whole on each rank, and partitioned then.");
  generator.set_state(start);
  return build();
}

}  // namespace capstan

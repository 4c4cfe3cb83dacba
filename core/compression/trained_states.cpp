// States that the optimizer trains become parameters of the model.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/uniform.h>

#include <optional>

#include "core/compression/compressions.hpp"
#include "core/host_tensor.hpp"
#include "core/memory/deferred_values.hpp"
#include "core/xxh3.hpp"

namespace capstan {

void add_trained_states(const Compressions& compressions, std::uint64_t seed, Model& model) {
  const at::NoGradGuard no_grad;
  for (const CompressionPlan::State* state : compressions.trained()) {
    std::optional<DeferredValues::Scope> scope;
    if (model.deferred()) scope.emplace(*model.deferred());
    const std::string& name = state->parameter;
    at::Tensor values = host_empty(state->shape, at::kFloat);
    // A function of seed and name: it depends on no other random number of the run.
    values.uniform_(-state->bound, state->bound,
                    at::make_generator<at::CPUGeneratorImpl>(seed ^ xxh3(name.data(), name.size())));
    if (!model.parameters().empty()) values = values.to(model.parameters().front().tensor.device());
    model.add_parameter({.name = name, .tensor = values.requires_grad_(true), .added = true});
  }
}

}  // namespace capstan

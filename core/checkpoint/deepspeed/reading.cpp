#include "core/checkpoint/deepspeed/reading.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/checkpoint/checkpoint_index.hpp"
#include "core/errors.hpp"

namespace capstan::deepspeed {

void Reading::add(const Shape& parameter, const std::string& state, const Flat& flat, std::int64_t from,
                  std::int64_t count, std::int64_t offset) {
  contents.tensors.push_back({parameter.name, state, parameter.sizes, offset, flat.values.narrow(0, from, count)});
  has_states = has_states || (state != kParamState && state != kBufferState);
  if (count > 0 && takes(contents.tensors.back())) flat.source.verify();
}

void Reading::add_whole(const Shape& parameter, const std::string& state, const TorchValue& value) {
  const Flat flat{value.tensor().reshape({-1}), value};
  if (flat.values.numel() != parameter.elements) {
    value.fail("has " + std::to_string(flat.values.numel()) + " elements, and '" + parameter.name + "' has " +
               std::to_string(parameter.elements) + ".");
  }
  add(parameter, state, flat, 0, parameter.elements, 0);
}

void Reading::set_step(const std::string& parameter, const TorchValue& step) {
  const double counted = step.number();
  const std::int64_t updates = counters.updates();
  // At stage 0 a parameter without a gradient counts no step, and 16-bit optimizers count one before the first.
  const bool is_partitioned = !optimizer.empty() || folder.universal;
  const bool fits = counted == std::floor(counted) && counted >= static_cast<double>(is_partitioned ? updates : 0) &&
                    counted <= static_cast<double>(updates + 1);
  if (!fits) {
    std::string text = step.is(Pickle::Kind::kTensor) ? Json(counted).dump() : step.described();
    step.fail("the optimizer has counted " + text + " updates, and the run has made " + std::to_string(updates) +
              " (global_steps less skipped_steps of the model's file). The files are of different steps, or damaged: "
              "load another checkpoint.");
  }
  steps[parameter] = static_cast<std::int64_t>(counted);
}

std::string state_of(const std::string& theirs) { return theirs == "sum" ? "exp_avg_sq" : theirs; }

Flat flat_of(const TorchValue& value) {
  at::Tensor values = value.tensor();
  if (!values.is_floating_point()) value.refuse("a tensor of floating-point numbers");
  return {values.reshape({-1}), value};
}

std::vector<Shape> shapes_of(const TorchValue& dict) {
  std::vector<Shape> shapes;
  std::set<std::string> known;
  for (const auto& [name, sizes] : dict.members()) {
    if (!known.insert(name).second) dict.fail("'" + name + "' is there twice.");
    shapes.push_back({name, sizes.shape(), 0});
    shapes.back().elements = elements_of(shapes.back().sizes);
  }
  return shapes;
}

}  // namespace capstan::deepspeed

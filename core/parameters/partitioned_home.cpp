#include "core/parameters/partitioned_home.hpp"

#include <ATen/ops/empty.h>

#include <utility>

namespace capstan {

void PartitionedHome::attach(Parameters parameters) {
  ParameterHome::attach(std::move(parameters));
  std::vector<ParameterResidency::Parameter> all;
  for (const NamedTensor& one : parameters_.trained)
    all.push_back({one.name, one.tensor, parameters_.stays[all.size()]});
  std::vector<at::Tensor> frozen;
  for (const NamedTensor& one : parameters_.frozen) {
    all.push_back({one.name, one.tensor, parameters_.stays[all.size()]});
    frozen.push_back(one.tensor);
  }
  residency_ = std::make_unique<ParameterResidency>(all, sharding_.gatherer(), limits_);
  std::vector<bool> coded;
  for (std::size_t k = 0; k < frozen.size(); ++k) {
    coded.push_back(parameters_.frozen_as_int8 && !stays(parameters_.trained.size() + k));
  }
  sharding_.attach_frozen(frozen, parameters_.frozen_dtype, std::move(coded), parameters_.movable_frozen);
}

void PartitionedHome::set_scales(std::size_t i, std::optional<PartScales> scales) {
  sharding_.set_scales(i, std::move(scales));
}

void PartitionedHome::begin_forward(const std::string& step, Pass pass) {
  sharding_.gatherer().name(step);
  residency_->begin_pass(pass);
}

void PartitionedHome::end_forward(Pass pass) {
  if (pass == Pass::kEvaluation) residency_->end_pass();
}

/// Parameters that stay are gathered at once; the others come with their next use.
void PartitionedHome::share(const std::string& step) {
  residency_->drop();
  sharding_.gatherer().forget();
  std::vector<ParameterSource::Request> wholes;
  for (std::size_t i = 0; i < parameters_.compute.size(); ++i) {
    const at::Tensor& compute = parameters_.compute[i];
    if (!stays(i) || sharding_.in_place(i) || compute.numel() == 0) continue;
    wholes.push_back(
        {i, compute.is_contiguous() ? compute.view({-1}) : at::empty({compute.numel()}, compute.options())});
  }
  if (wholes.empty()) return;
  sharding_.gatherer().name(step);
  sharding_.gatherer().wait(sharding_.gatherer().fetch("parameters that stay", wholes));
  for (const auto& [i, values] : wholes) {
    const at::Tensor& compute = parameters_.compute[i];
    if (!compute.is_contiguous()) compute.copy_(values.view(compute.sizes()));
  }
}

void PartitionedHome::set_frozen(std::size_t k, const std::function<void(at::Tensor to, std::int64_t offset)>& fill) {
  const at::Tensor& whole = parameters_.frozen[k].tensor;
  if (stays(parameters_.trained.size() + k)) fill(whole, 0);
  const Range part = frozen_part(k);
  const at::Tensor values = at::empty({part.numel}, whole.options());
  fill(values, part.offset);
  sharding_.frozen().take_part(k, values);
  sharding_.gatherer().forget_frozen();
}

}  // namespace capstan

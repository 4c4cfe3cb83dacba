#include "core/keep/checkpoint_lookup.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/errors.hpp"

namespace capstan {

namespace {

constexpr const char* kOfRank = " of rank ";

}  // namespace

std::string of_rank(const std::string& name, int rank) { return name + kOfRank + std::to_string(rank); }

std::string without_of(const std::string& state) { return state.substr(0, state.find(" of ")); }

bool is_of_another_rank(const std::string& name, int rank) {
  const std::size_t at = name.find(kOfRank);
  return at != std::string::npos && name != of_rank(name.substr(0, at), rank);
}

std::string generator_state(const std::string& device, int rank) {
  return of_rank(device == "cpu" ? "generator" : device + " generator", rank);
}

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i > 0 ? ", '" : "'") + names[i] + "'";
  if (names.size() > kMost) text += ", ... (" + std::to_string(names.size()) + " in all)";
  return text;
}

bool is_cut(const StateSpec& spec) {
  return spec.like == StateSpec::Like::kParameter || spec.like == StateSpec::Like::kBlock;
}

std::vector<std::int64_t> state_shape(const StateSpec& spec, const ParameterEntry& entry, const at::Tensor& values) {
  if (spec.like == StateSpec::Like::kParameter) return entry.shape;
  if (is_cut(spec) || spec.is_factor()) return {spec.values_for(entry.parameter.numel(), entry.shape)};
  return {values.numel()};
}

CheckpointLookup::CheckpointLookup(const CheckpointContents& contents, std::string where, bool strict)
    : where_(std::move(where)), strict_(strict) {
  for (const CheckpointTensor& tensor : contents.tensors) tensors_[{tensor.parameter, tensor.state}].push_back(&tensor);
}

void CheckpointLookup::require(const std::string& parameter, const std::string& state, at::IntArrayRef shape) const {
  const auto found = tensors_.find({parameter, state});
  const std::string what = "'" + parameter + "'" + (state == kParam ? "" : ", state '" + state + "'");
  if (found == tensors_.end()) {
    throw RuntimeFault(where_ + ": holds nothing for " + what + ". It was saved from another model or optimizer.");
  }
  std::int64_t elements = 0;
  for (const CheckpointTensor* part : found->second) elements += part->values.numel();
  const CheckpointTensor& tensor = *found->second.front();
  if (at::IntArrayRef(tensor.shape) != shape) {
    throw RuntimeFault(where_ + ": " + what + " has shape " + c10::str(at::IntArrayRef(tensor.shape)) +
                       ", this model's is " + c10::str(shape) + ". It was saved from another model.");
  }
  if (elements != c10::multiply_integers(shape)) {
    throw RuntimeFault(where_ + ": " + what + " is there only in part (" + std::to_string(elements) + " of " +
                       std::to_string(c10::multiply_integers(shape)) + " elements): a rank's file is missing.");
  }
}

void CheckpointLookup::require(const std::string& parameter, const StateSpec& spec, at::IntArrayRef shape,
                               at::ScalarType dtype) const {
  require(parameter, spec.name, shape);
  const at::ScalarType saved = tensors_.at({parameter, spec.name}).front()->values.scalar_type();
  if (saved == dtype || !(at::isIntegralType(saved, true) || at::isIntegralType(dtype, true))) return;
  throw RuntimeFault(where_ + ": '" + parameter + "', state '" + spec.name + "' is of " + c10::toString(saved) +
                     ", this optimizer keeps it as " + c10::toString(dtype) +
                     ". It was saved by another version of the optimizer's plugin: resume with that one, or start from "
                     "the weights alone with --init-from.");
}

void CheckpointLookup::copy(const std::string& parameter, const std::string& state, at::Tensor to,
                            std::int64_t offset) const {
  const std::int64_t end = offset + to.numel();
  // A tensor that is not contiguous is whole, and so is what is copied to it.
  at::Tensor flat = to.is_contiguous() ? to.view({-1}) : at::empty({to.numel()}, to.options());
  for (const CheckpointTensor* part : tensors_.at({parameter, state})) {
    const std::int64_t from = std::max(offset, part->offset);
    const std::int64_t until = std::min(end, part->offset + part->values.numel());
    if (from >= until) continue;
    flat.narrow(0, from - offset, until - from)
        .copy_(part->values.reshape({-1}).narrow(0, from - part->offset, until - from));
  }
  if (!to.is_contiguous()) to.copy_(flat.view(to.sizes()));
}

std::vector<std::string> CheckpointLookup::with_state(const std::string& state) const {
  std::vector<std::string> names;
  for (const auto& [key, parts] : tensors_) {
    if (key.second == state) names.push_back(key.first);
  }
  return names;
}

std::set<std::string> CheckpointLookup::state_names() const {
  std::set<std::string> names;
  for (const auto& [key, parts] : tensors_) names.insert(without_of(key.second));
  return names;
}

at::Tensor CheckpointLookup::find_whole(const std::string& state) const {
  const auto found = tensors_.find({"", state});
  return found == tensors_.end() ? at::Tensor() : found->second.front()->values;
}

}  // namespace capstan

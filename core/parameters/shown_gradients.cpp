// How a parameter store shows compressions the gradients of a step.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "core/parameters/parameter_store.hpp"

namespace capstan {
namespace {

bool is_plain(const at::Tensor& gradient) { return gradient.scalar_type() == at::kFloat; }

}  // namespace

const CompressedPart& ParameterStore::compressed_part(const std::string& parameter) const {
  return *std::find_if(compressed_.parameters.begin(), compressed_.parameters.end(),
                       [&](const CompressedPart& part) { return part.name == parameter; });
}

/// The mean gradient of what this rank updates of entry i, one dimension, in its own memory; undefined: there is none.
at::Tensor ParameterStore::gradient_here(std::size_t i) {
  if (sharding_) return sharding_->gradients().gradient(i);
  at::Tensor& gradient = entries_[i].gradient();
  if (!gradient.defined()) return {};
  if (gradient.layout() != at::kStrided) {
    if (!options_.sparse_gradients) return {};  // collect_gradients() refuses it
    gradient = gradient.to_dense();
  }
  if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  return gradient.view({-1});
}

/// Whether some rank has a gradient of each compressed parameter.
std::vector<std::uint8_t> ParameterStore::compressed_present(const std::string& step) {
  std::vector<std::uint8_t> present;
  for (const CompressedPart& part : compressed_.parameters) {
    present.push_back(sharding_ ? sharding_->gradients().touched()[part.entry]
                                : entries_[part.entry].gradient().defined());
  }
  if (!sharding_ || sharding_->communicator().size() == 1) return present;
  std::vector<at::Tensor> of_ranks;
  Communicator& communicator = sharding_->communicator();
  for (int rank = 0; rank < communicator.size(); ++rank) {
    of_ranks.push_back(at::empty({static_cast<std::int64_t>(present.size())}, at::kByte));
  }
  std::copy(present.begin(), present.end(),
            of_ranks[static_cast<std::size_t>(communicator.rank())].mutable_data_ptr<std::uint8_t>());
  communicator.all_gather(step + ", gradients of compressed parameters", of_ranks);
  for (const at::Tensor& rank : of_ranks) {
    for (std::size_t k = 0; k < present.size(); ++k) present[k] |= rank.const_data_ptr<std::uint8_t>()[k];
  }
  return present;
}

/// Makes what was filled of a trained state's gradient that of the step, or says that there is none.
void ParameterStore::give_gradient(TrainedPart& part) {
  const at::Tensor filled = std::exchange(part.gradient, at::Tensor());
  const bool given = std::exchange(part.has_gradient, false);
  if (!sharding_) {
    if (given)
      entries_[part.entry].accumulated = filled.to(options_.accumulation_dtype).view(entries_[part.entry].shape);
    return;
  }
  at::Tensor kept = sharding_->gradients().gradient(part.entry);
  if (given) {
    if (!kept.is_alias_of(filled)) kept.copy_(filled);
    sharding_->gradients().note_given(part.entry);
  } else {
    kept.zero_();  // what an earlier step has left there
  }
}

void ParameterStore::show_gradients(const std::string& step, bool changes,
                                    const std::function<void(CompressedParts&)>& use) {
  if (compressed_.parameters.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<std::uint8_t> present;
  if (changes) {
    present = compressed_present(step);
  } else {
    for (const CompressedPart& part : compressed_.parameters) present.push_back(has_gradient(part.entry) ? 1 : 0);
  }
  std::vector<at::Tensor> kept;
  for (std::size_t k = 0; k < present.size(); ++k) {
    CompressedPart& part = compressed_.parameters[k];
    kept.push_back(present[k] != 0 ? gradient_here(part.entry) : at::Tensor());
    if (kept[k].defined()) part.gradient = is_plain(kept[k]) ? kept[k] : kept[k].to(at::kFloat);
  }
  for (TrainedPart& part : compressed_.states) {
    if (!changes) break;
    if (sharding_) part.gradient = sharding_->gradients().gradient(part.entry);
    if (!part.gradient.defined() || !is_plain(part.gradient)) part.gradient = at::empty({part.range.numel}, at::kFloat);
  }
  use(compressed_);
  for (std::size_t k = 0; k < present.size(); ++k) {
    const at::Tensor shown = std::exchange(compressed_.parameters[k].gradient, at::Tensor());
    if (changes && kept[k].defined() && !is_plain(kept[k])) kept[k].copy_(shown);
  }
  for (TrainedPart& part : compressed_.states) {
    if (changes) give_gradient(part);
  }
}

}  // namespace capstan

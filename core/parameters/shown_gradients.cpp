// How a parameter store shows compressions the gradients of a step.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "core/host_tensor.hpp"
#include "core/parameters/parameter_store.hpp"

namespace capstan {
namespace {

/// Whether compressions may work on it as it is.
bool is_plain(const at::Tensor& gradient) { return gradient.is_cpu() && gradient.scalar_type() == at::kFloat; }

}  // namespace

const CompressedPart& ParameterStore::compressed_part(const std::string& parameter) const {
  return *std::find_if(compressed_.parameters.begin(), compressed_.parameters.end(),
                       [&](const CompressedPart& part) { return part.name == parameter; });
}

/// Whether some rank has a gradient of each compressed parameter.
std::vector<std::uint8_t> ParameterStore::compressed_present(const std::string& step) {
  std::vector<std::uint8_t> present;
  for (const CompressedPart& part : compressed_.parameters) {
    present.push_back(gradients_->is_here(part.entry) ? 1 : 0);
  }
  if (!sharding_ || sharding_->communicator().size() == 1) return present;
  std::vector<at::Tensor> of_ranks;
  Communicator& communicator = sharding_->communicator();
  for (int rank = 0; rank < communicator.size(); ++rank) {
    of_ranks.push_back(host_empty({static_cast<std::int64_t>(present.size())}, at::kByte));
  }
  std::copy(present.begin(), present.end(),
            of_ranks[static_cast<std::size_t>(communicator.rank())].mutable_data_ptr<std::uint8_t>());
  communicator.all_gather(step + ", gradients of compressed parameters", of_ranks);
  for (const at::Tensor& rank : of_ranks) {
    for (std::size_t k = 0; k < present.size(); ++k) present[k] |= rank.const_data_ptr<std::uint8_t>()[k];
  }
  return present;
}

/// Makes the values that were filled in the gradient of a trained state, or forgets it.
void ParameterStore::give_gradient(TrainedPart& part) {
  const at::Tensor filled = std::exchange(part.gradient, at::Tensor());
  if (std::exchange(part.has_gradient, false)) {
    gradients_->set(part.entry, filled);
  } else {
    gradients_->forget(part.entry);
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
    kept.push_back(present[k] != 0 ? gradients_->flat(part.entry) : at::Tensor());
    if (kept[k].defined()) part.gradient = is_plain(kept[k]) ? kept[k] : kept[k].to(at::kCPU, at::kFloat);
  }
  for (TrainedPart& part : compressed_.states) {
    if (!changes) break;
    part.gradient = host_empty({part.range.numel}, at::kFloat);
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

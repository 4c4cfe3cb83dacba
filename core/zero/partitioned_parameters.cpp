#include "core/zero/partitioned_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "core/zero/quantized_collectives.hpp"

namespace capstan {

PartitionedParameters::PartitionedParameters(const Partition& partition, int rank, std::size_t parameters,
                                             at::ScalarType dtype)
    : partition_(partition), rank_(rank) {
  const at::NoGradGuard no_grad;
  const at::Tensor memory = at::empty({partition.owned(rank)}, dtype);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < parameters; ++i) {
    const Range range = partition.part(i, rank);
    parts_.push_back(memory.narrow(0, at, range.numel));
    at += (range.numel + Partition::kAlignment - 1) / Partition::kAlignment * Partition::kAlignment;
  }
}

void PartitionedParameters::take(std::size_t i, const at::Tensor& whole) {
  const at::NoGradGuard no_grad;
  const Range range = partition_.part(i, rank_);
  parts_[i].copy_(whole.detach().reshape({-1}).narrow(0, range.offset, range.numel));
}

void PartitionedParameters::gather(Communicator& communicator, const std::string& name,
                                   const std::vector<ParameterSource::Request>& wholes, bool quantized) const {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> pieces;
  for (const auto& [parameter, values] : wholes) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const Range range = partition_.part(parameter, rank);
      parts.push_back(values.narrow(0, range.offset, range.numel));
    }
    parts[static_cast<std::size_t>(rank_)].copy_(parts_[parameter]);
    pieces.push_back(std::move(parts));
  }
  if (quantized) return quantized_all_gather(communicator, name, pieces);
  communicator.all_gather(name, pieces);
}

ParameterSource::Ticket PartGatherer::fetch(const std::string& what, std::vector<Request> requests) {
  return queue_.submit([this, name = step_ + ", gather of " + what, wholes = std::move(requests)] {
    std::vector<Request> near, far;
    for (const Request& whole : wholes) (secondary_.has(whole.parameter) ? near : far).push_back(whole);
    if (!near.empty()) secondary_.gather(communicator_, name + ", near", near);
    if (far.empty()) return;
    parts_.gather(communicator_, name, far, options_.quantized);
    secondary_.keep(far);
  });
}

}  // namespace capstan

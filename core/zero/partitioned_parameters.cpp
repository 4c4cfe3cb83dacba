#include "core/zero/partitioned_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "core/zero/quantized_collectives.hpp"

namespace capstan {

PartitionedParameters::PartitionedParameters(const Partition& partition, int rank, at::ScalarType dtype,
                                             std::vector<bool> coded)
    : partition_(partition), rank_(rank), dtype_(dtype), coded_(std::move(coded)) {
  const at::NoGradGuard no_grad;
  const std::size_t count = partition.order().size();
  coded_.resize(count);
  codes_.resize(count);
  std::vector<std::int64_t> first;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < count; ++i) {
    first.push_back(elements);
    if (!coded_[i]) elements += Partition::aligned(partition.part(i, rank).numel);
  }
  const at::Tensor memory = at::empty({elements}, dtype);
  for (std::size_t i = 0; i < count; ++i) {
    parts_.push_back(coded_[i] ? at::Tensor() : memory.narrow(0, first[i], partition.part(i, rank).numel));
  }
}

void PartitionedParameters::take(std::size_t i, const at::Tensor& whole) {
  const Range range = partition_.part(i, rank_);
  take_part(i, whole.detach().reshape({-1}).narrow(0, range.offset, range.numel));
}

void PartitionedParameters::take_part(std::size_t i, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  if (!coded_[i]) {
    parts_[i].copy_(values);
    return;
  }
  codes_[i] = weight_codes(values);
  if (!codes_[i].defined()) parts_[i] = values.to(dtype_, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor PartitionedParameters::part(std::size_t i) const {
  if (!codes_[i].defined()) return parts_[i];
  const at::Tensor values = at::empty({partition_.part(i, rank_).numel}, dtype_);
  decode_weights(codes_[i], values);
  return values;
}

void PartitionedParameters::gather(Communicator& communicator, const std::string& name,
                                   const std::vector<ParameterSource::Request>& wholes, bool quantized) const {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> pieces, coded;
  std::vector<at::Tensor> codes;
  for (const auto& [parameter, values] : wholes) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const Range range = partition_.part(parameter, rank);
      parts.push_back(values.narrow(0, range.offset, range.numel));
    }
    if (!codes_[parameter].defined()) parts[static_cast<std::size_t>(rank_)].copy_(parts_[parameter]);
    if (coded_[parameter]) codes.push_back(codes_[parameter]);
    (coded_[parameter] ? coded : pieces).push_back(std::move(parts));
  }
  if (!coded.empty()) quantized_all_gather(communicator, name + ", codes", coded, codes);
  if (pieces.empty()) return;
  if (quantized) return quantized_all_gather(communicator, name, pieces);
  communicator.all_gather(name, pieces);
}

ParameterSource::Ticket PartGatherer::fetch(const std::string& what, std::vector<Request> requests) {
  return queue_.submit([this, name = step_ + ", gather of " + what, wholes = std::move(requests)] {
    std::vector<Request> trainable, frozen;
    for (const Request& whole : wholes) {
      const bool is_frozen = whole.parameter >= parts_.size();
      (is_frozen ? frozen : trainable).push_back({whole.parameter - (is_frozen ? parts_.size() : 0), whole.values});
    }
    bring(parts_, secondary_, name, trainable);
    if (!frozen.empty()) bring(*frozen_, frozen_secondary_, name + ", frozen", frozen);
  });
}

void PartGatherer::bring(const PartitionedParameters& parts, SecondaryPartition& secondary, const std::string& name,
                         const std::vector<Request>& wholes) {
  std::vector<Request> near, far;
  for (const Request& whole : wholes) (secondary.has(whole.parameter) ? near : far).push_back(whole);
  if (!near.empty()) secondary.gather(communicator_, name + ", near", near);
  if (far.empty()) return;
  parts.gather(communicator_, name, far, options_.quantized);
  secondary.keep(far);
}

}  // namespace capstan

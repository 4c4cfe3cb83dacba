#include "core/zero/partitioned_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "core/host_tensor.hpp"
#include "core/zero/quantized_collectives.hpp"

namespace capstan {

void PartReads::start(PartStore& store, std::size_t parameter, const at::Tensor& to) {
  const at::Tensor here = to.is_cpu() ? to : host_empty({to.numel()}, to.scalar_type());
  under_way_.emplace_back(&store, PartStore::Ticket{});
  try {
    under_way_.back().second = store.read(parameter, here);
    if (!to.is_cpu()) for_devices_.emplace_back(here, to);
  } catch (...) {
    under_way_.pop_back();
    throw;
  }
}

void PartReads::end() noexcept {
  for (const auto& [store, ticket] : under_way_) {
    try {
      store->wait(ticket);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  under_way_.clear();
}

void PartReads::wait() {
  end();
  if (failure_) std::rethrow_exception(failure_);
  for (const auto& [from, to] : for_devices_) at::Tensor(to).copy_(from);
  for_devices_.clear();
}

PartitionedParameters::PartitionedParameters(const Partition& partition, int rank, const at::TensorOptions& options,
                                             Places places)
    : partition_(partition), rank_(rank), options_(options), places_(std::move(places)) {
  const at::NoGradGuard no_grad;
  const std::size_t count = partition.order().size();
  places_.coded.resize(count);
  places_.in_place.resize(count);
  places_.stored.resize(count);
  codes_.resize(count);
  scales_.resize(count);
  const auto has_room = [&](std::size_t i) {
    return !places_.coded[i] && !places_.stored[i] && !places_.in_place[i].defined();
  };
  std::vector<std::int64_t> first;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < count; ++i) {
    first.push_back(elements);
    if (has_room(i)) elements += Partition::aligned(partition.part(i, rank).numel);
  }
  const at::Tensor memory = at::empty({elements}, options_);
  for (std::size_t i = 0; i < count; ++i) {
    const bool here = has_room(i);
    parts_.push_back(here ? memory.narrow(0, first[i], partition.part(i, rank).numel) : places_.in_place[i]);
  }
}

void PartitionedParameters::take(std::size_t i, const at::Tensor& whole) {
  const Range range = partition_.part(i, rank_);
  take_part(i, whole.detach().reshape({-1}).narrow(0, range.offset, range.numel));
}

void PartitionedParameters::take_part(std::size_t i, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  if (stored(i)) {
    if (values.numel() > 0)
      places_.store->write(places_.first_in_store + i,
                           values.to(host_options(c10::typeMetaToScalarType(options_.dtype()))).contiguous());
    return;
  }
  if (!places_.coded[i]) {
    parts_[i].copy_(values);
    return;
  }
  codes_[i] = weight_codes(values.to(options_.device()));
  if (!codes_[i].defined()) parts_[i] = values.to(options_, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor PartitionedParameters::part(std::size_t i) const {
  if (!codes_[i].defined() && !stored(i)) return parts_[i];
  const at::Tensor values = at::empty({partition_.part(i, rank_).numel}, options_);
  if (codes_[i].defined()) {
    decode_weights(codes_[i], values);
  } else if (values.numel() > 0) {
    PartReads reads;
    reads.start(*places_.store, places_.first_in_store + i, values);
    reads.wait();
  }
  return values;
}

void PartitionedParameters::start_read(const ParameterSource::Request& whole, PartReads& reads) const {
  const Range range = partition_.part(whole.parameter, rank_);
  if (range.numel == 0) return;
  reads.start(*places_.store, places_.first_in_store + whole.parameter,
              whole.values.narrow(0, range.offset, range.numel));
}

void PartitionedParameters::gather(Communicator& communicator, const std::string& name,
                                   const std::vector<ParameterSource::Request>& wholes, bool quantized) const {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> pieces, coded;
  std::vector<at::Tensor> codes;
  std::vector<ParameterSource::Request> on_grids;
  for (const auto& [parameter, values] : wholes) {
    if (scales_[parameter]) {
      on_grids.push_back({parameter, values});
      continue;
    }
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const Range range = partition_.part(parameter, rank);
      parts.push_back(values.narrow(0, range.offset, range.numel));
    }
    if (parts_[parameter].defined()) parts[static_cast<std::size_t>(rank_)].copy_(parts_[parameter]);
    const bool is_coded = places_.coded[parameter];
    if (is_coded) codes.push_back(codes_[parameter]);
    (is_coded ? coded : pieces).push_back(std::move(parts));
  }
  if (!on_grids.empty()) gather_coded(communicator, name + ", compressed", on_grids);
  if (!coded.empty()) quantized_all_gather(communicator, name + ", codes", coded, codes);
  if (pieces.empty()) return;
  if (quantized) return quantized_all_gather(communicator, name, pieces);
  communicator.all_gather(name, pieces);
}

/// Codes and scales travel, and every rank makes the values of them: its own part's as well, which stay the same.
void PartitionedParameters::gather_coded(Communicator& communicator, const std::string& name,
                                         const std::vector<ParameterSource::Request>& wholes) const {
  std::vector<std::vector<at::Tensor>> pieces;
  for (const auto& [parameter, values] : wholes) {
    std::vector<at::Tensor>& parts = pieces.emplace_back();
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const Range range = partition_.part(parameter, rank);
      parts.push_back(rank == rank_
                          ? encode_part(*scales_[parameter], range, parts_[parameter].to(values.device()))
                          : at::empty({scales_[parameter]->format.bytes(range)}, values.options().dtype(at::kByte)));
    }
  }
  communicator.all_gather(name, pieces);
  for (std::size_t k = 0; k < wholes.size(); ++k) {
    const auto& [parameter, values] = wholes[k];
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const Range range = partition_.part(parameter, rank);
      decode_part(scales_[parameter]->format, range, pieces[k][static_cast<std::size_t>(rank)],
                  values.narrow(0, range.offset, range.numel));
    }
  }
}

PartGatherer::Wholes PartGatherer::split(const std::vector<Request>& requests) const {
  Wholes wholes;
  for (const Request& whole : requests) {
    const bool is_frozen = whole.parameter >= parts_.size();
    (is_frozen ? wholes.frozen : wholes.trained)
        .push_back({whole.parameter - (is_frozen ? parts_.size() : 0), whole.values});
  }
  return wholes;
}

void PartGatherer::start_reads(const Wholes& wholes, PartReads& reads) const {
  const auto start = [&](const PartitionedParameters& parts, const SecondaryPartition& secondary,
                         const std::vector<Request>& requests) {
    for (const Request& whole : requests) {
      if (parts.stored(whole.parameter) && !secondary.has(whole.parameter)) parts.start_read(whole, reads);
    }
  };
  start(parts_, secondary_, wholes.trained);
  if (!wholes.frozen.empty()) start(*frozen_, frozen_secondary_, wholes.frozen);
}

ParameterSource::Ticket PartGatherer::fetch(const std::string& what, std::vector<Request> requests) {
  const std::string name = step_ + ", gather of " + what;
  const Wholes wholes = split(requests);
  const auto reads = std::make_shared<PartReads>();
  start_reads(wholes, *reads);
  if (communicator_.size() == 1) {
    bring_all(name, wholes);  // copies what is in memory
    reads_.emplace(++last_, reads);
    return last_;
  }
  return queue_.submit([this, name, wholes, reads] {
    reads->wait();
    bring_all(name, wholes);
  });
}

void PartGatherer::wait(Ticket ticket) {
  if (communicator_.size() > 1) return queue_.wait(ticket);
  const auto found = reads_.find(ticket);
  if (found == reads_.end()) return;
  found->second->wait();
  reads_.erase(found);
}

void PartGatherer::bring_all(const std::string& name, const Wholes& wholes) {
  bring(parts_, secondary_, name, wholes.trained);
  if (!wholes.frozen.empty()) bring(*frozen_, frozen_secondary_, name + ", frozen", wholes.frozen);
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

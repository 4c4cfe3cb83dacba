#include "core/zero/sharding.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "core/host_tensor.hpp"

namespace capstan {
namespace {

/// Options of the parts of tensors that are all on one device and of one type.
at::TensorOptions options_of_parts(const std::vector<at::Tensor>& tensors, bool on_host) {
  if (tensors.empty()) return host_options(at::kFloat);
  const at::TensorOptions options = tensors.front().options().requires_grad(false);
  return on_host ? options.device(at::kCPU) : options;
}

static_assert(Partition::kBlock == kSquareBlock, "parts must hold whole blocks, or norms would depend on the cut");

std::vector<Partition::Parameter> partition_inputs(const std::vector<std::int64_t>& numels, bool whole,
                                                   const std::vector<ShardingOptions::Given>& given = {}) {
  std::vector<Partition::Parameter> inputs;
  for (const std::int64_t numel : numels) inputs.push_back({.numel = numel, .whole = whole});
  for (const ShardingOptions::Given& one : given) {
    inputs[one.parameter].given = true;
    inputs[one.parameter].like = one.like;
  }
  return inputs;
}

/// The memory of parameters that are their own parts.
std::vector<at::Tensor> own_memory(const std::vector<at::Tensor>& parameters, const std::vector<bool>& movable,
                                   const std::vector<bool>& stored) {
  std::vector<at::Tensor> memory(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (movable[i] && (stored.empty() || !stored[i])) memory[i] = parameters[i].detach().view({-1});
  }
  return memory;
}

}  // namespace

Sharding::Sharding(ShardingOptions options, const std::vector<std::int64_t>& numels,
                   const std::vector<std::int64_t>& frozen_numels)
    : options_(std::move(options)),
      numels_(numels),
      partition_(partition_inputs(numels, options_.whole_parameters, options_.given), options_.reduce_bucket_size,
                 options_.communicator->size()),
      frozen_partition_(partition_inputs(frozen_numels, false), options_.reduce_bucket_size,
                        options_.communicator->size()),
      queue_(options_.overlap, options_.bind_thread, options_.after_this) {}

Range Sharding::updated(std::size_t i, int rank) const {
  return partitioned() ? partition_.part(i, rank) : Range{0, numels_[i]};
}

void Sharding::attach(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
                      const std::vector<bool>& movable, StoredValues stored_values) {
  stored_ = std::move(stored_values);
  const bool alone = options_.communicator->size() == 1;
  if (parts_only()) {
    PartitionedParameters::Places places{.store = stored_.parts, .stored = stored_.trained};
    if (alone) places.in_place = own_memory(parameters, movable, stored_.trained);
    parts_ = std::make_unique<PartitionedParameters>(partition_, options_.communicator->rank(),
                                                     options_of_parts(parameters, options_.parts_on_host),
                                                     std::move(places));
    gatherer_ = std::make_unique<PartGatherer>(*options_.communicator, queue_, *parts_, options_.parts);
  } else if (partitioned()) {
    FlatParameters::Gathering gathering{options_.gather_bucket_size, options_.gather_by_broadcast};
    // Forward can use the first pieces while the last ones are still on their way.
    if (options_.overlap) gathering.slice = std::min(gathering.slice, Partition::kLargestBucket);
    parameters_ = std::make_unique<FlatParameters>(partition_, parameters, movable, gathering);
    if (options_.overlap) {
      arriving_ = std::make_unique<ArrivingParameters>(parameters, names, *parameters_, *options_.communicator, queue_);
    }
  }
  GradientsOnStore gradients_on_store;
  if (stored_.gradients != nullptr) gradients_on_store = {stored_.gradients, stored_.trained};
  gradients_ = std::make_unique<GradientReducer>(options_.communicator, queue_, partition_, parameters, names,
                                                 options_.gradients, std::move(gradients_on_store));
}

void Sharding::attach_frozen(const std::vector<at::Tensor>& frozen, at::ScalarType dtype, std::vector<bool> coded,
                             const std::vector<bool>& movable) {
  PartitionedParameters::Places places{
      .store = stored_.parts, .stored = stored_.frozen, .first_in_store = numels_.size()};
  if (options_.communicator->size() == 1) {
    places.in_place = own_memory(frozen, movable, stored_.frozen);
  } else {
    places.coded = std::move(coded);
  }
  frozen_ = std::make_unique<PartitionedParameters>(frozen_partition_, options_.communicator->rank(),
                                                    options_of_parts(frozen, options_.parts_on_host).dtype(dtype),
                                                    std::move(places));
  gatherer_->set_frozen(frozen_.get());
}

at::Tensor Sharding::updated_values(std::size_t i) const {
  if (parts_only()) return parts_->part_in_memory(i);
  const Range part = updated(i);
  return parameters_->values(i).narrow(0, part.offset, part.numel);
}

at::Tensor Sharding::gather_master(const std::string& step, std::size_t i, const at::Tensor& part) {
  at::Tensor whole = at::empty({numels_[i]}, part.options());
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < options_.communicator->size(); ++rank) {
    const Range range = partition_.part(i, rank);
    parts.push_back(whole.narrow(0, range.offset, range.numel));
  }
  parts[static_cast<std::size_t>(options_.communicator->rank())].copy_(part);
  options_.communicator->all_gather(step + ", master of parameter " + std::to_string(i), parts);
  return whole;
}

std::int64_t Sharding::blocks_of(int rank) const {
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < numels_.size(); ++i) blocks += blocks_in(partition_.part(i, rank).numel);
  return blocks;
}

std::vector<double> Sharding::add_blocks(const std::vector<const double*>& of_rank, std::size_t width) const {
  std::vector<const double*> next = of_rank;
  std::vector<double> totals(numels_.size() * width);
  for (std::size_t i = 0; i < numels_.size(); ++i) {
    // Ranks own rising ranges of a parameter.
    for (int rank = 0; rank < options_.communicator->size(); ++rank) {
      const double*& at = next[static_cast<std::size_t>(rank)];
      for (std::int64_t block = blocks_in(partition_.part(i, rank).numel); block > 0; --block) {
        for (std::size_t k = 0; k < width; ++k) totals[i * width + k] += *at++;
      }
    }
  }
  return totals;
}

std::vector<SumOfSquares> Sharding::own_squares(bool by_block) const {
  const bool local = gradients_->local();
  std::vector<at::Tensor> mine(numels_.size());
  std::vector<const at::Tensor*> here;
  for (std::size_t i = 0; i < numels_.size(); ++i) {
    if (gradients_->stored(i)) continue;
    const Range part = partition_.part(i, options_.communicator->rank());
    const at::Tensor gradient = gradients_->gradient(i);
    mine[i] = local || partitioned() ? gradient : gradient.narrow(0, part.offset, part.numel);
    here.push_back(&mine[i]);
  }
  const std::vector<SumOfSquares> of_here = sums_of_squares(here);
  std::vector<SumOfSquares> blocks;  // in the order of the parameters
  auto next = of_here.begin();
  for (std::size_t i = 0; i < numels_.size(); ++i) {
    if (gradients_->stored(i)) {
      const std::vector<SumOfSquares>& taken = gradients_->squares_of_stored(i);
      blocks.insert(blocks.end(), taken.begin(), taken.end());
    } else {
      const auto end = next + blocks_in(mine[i].numel());
      blocks.insert(blocks.end(), next, end);
      next = end;
    }
  }
  if (by_block) return blocks;
  SumOfSquares total;
  for (const SumOfSquares& block : blocks) total += block;
  return {total};
}

StepAgreement Sharding::exchange(const std::string& step, const std::vector<double>& numbers, bool norm) {
  const int own = options_.communicator->rank();
  const bool local = gradients_->local();
  const bool by_block = norm && !local && options_.communicator->size() > 1;
  const std::vector<SumOfSquares> squares = own_squares(by_block);

  std::vector<at::Tensor> doubles, bytes;
  for (int rank = 0; rank < options_.communicator->size(); ++rank) {
    const std::int64_t sums = by_block ? blocks_of(rank) : 1;
    const auto count = static_cast<std::int64_t>(numbers.size()) + 2 * sums;
    doubles.push_back(host_empty({count}, at::kDouble));
    bytes.push_back(host_empty({static_cast<std::int64_t>(numels_.size())}, at::kByte));
  }
  auto* mine = doubles[static_cast<std::size_t>(own)].mutable_data_ptr<double>();
  mine = std::copy(numbers.begin(), numbers.end(), mine);
  for (const SumOfSquares& of_block : squares) {
    *mine++ = of_block.exact;
    *mine++ = of_block.rounded;
  }
  std::copy(gradients_->touched().begin(), gradients_->touched().end(),
            bytes[static_cast<std::size_t>(own)].mutable_data_ptr<std::uint8_t>());
  options_.communicator->all_gather(step + ", loss and norm", {doubles, bytes});

  StepAgreement agreement;
  agreement.present.resize(numels_.size());
  std::vector<const double*> blocks;
  for (std::size_t rank = 0; rank < doubles.size(); ++rank) {
    const auto* at = doubles[rank].const_data_ptr<double>();
    agreement.numbers.emplace_back(at, at + numbers.size());
    blocks.push_back(at + numbers.size());
    const auto* has = bytes[rank].const_data_ptr<std::uint8_t>();
    for (std::size_t i = 0; i < numels_.size(); ++i) agreement.present[i] |= has[i];
  }
  if (by_block) {
    const std::vector<double> totals = add_blocks(blocks, 2);
    for (std::size_t i = 0; i < numels_.size(); ++i) agreement.squares += {totals[2 * i], totals[2 * i + 1]};
  } else {
    const double shared_by = local ? static_cast<double>(blocks.size()) : 1.0;
    for (const double* of_rank : blocks) agreement.squares += {of_rank[0] / shared_by, of_rank[1] / shared_by};
  }
  return agreement;
}

std::vector<double> Sharding::sum_blocks(const std::string& name, const std::vector<double>& per_block,
                                         std::size_t width) {
  std::vector<double> totals(numels_.size() * width);
  if (!partitioned()) {
    const double* at = per_block.data();
    for (std::size_t i = 0; i < numels_.size(); ++i) {
      for (std::int64_t block = blocks_in(numels_[i]); block > 0; --block) {
        for (std::size_t k = 0; k < width; ++k) totals[i * width + k] += *at++;
      }
    }
    return totals;
  }
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < options_.communicator->size(); ++rank) {
    parts.push_back(host_empty({blocks_of(rank) * static_cast<std::int64_t>(width)}, at::kDouble));
  }
  std::copy(per_block.begin(), per_block.end(),
            parts[static_cast<std::size_t>(options_.communicator->rank())].mutable_data_ptr<double>());
  options_.communicator->all_gather(name, parts);
  std::vector<const double*> pointers;
  for (const at::Tensor& part : parts) pointers.push_back(part.const_data_ptr<double>());
  return add_blocks(pointers, width);
}

}  // namespace capstan

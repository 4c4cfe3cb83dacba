#include "core/zero/sharding.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace capstan {
namespace {

static_assert(Partition::kBlock == kSquareBlock, "parts must hold whole blocks, or norms would depend on the cut");

std::vector<Partition::Parameter> partition_inputs(const std::vector<std::int64_t>& numels, bool whole) {
  std::vector<Partition::Parameter> inputs;
  for (const std::int64_t numel : numels) inputs.push_back({numel, whole});
  return inputs;
}

}  // namespace

Sharding::Sharding(ShardingOptions options, const std::vector<std::int64_t>& numels,
                   const std::vector<std::int64_t>& frozen_numels)
    : options_(std::move(options)),
      numels_(numels),
      partition_(partition_inputs(numels, options_.whole_parameters), options_.reduce_bucket_size,
                 options_.communicator->size()),
      frozen_partition_(partition_inputs(frozen_numels, false), options_.reduce_bucket_size,
                        options_.communicator->size()),
      queue_(options_.overlap, options_.bind_thread) {}

Range Sharding::updated(std::size_t i) const {
  return partitioned() ? partition_.part(i, options_.communicator->rank()) : Range{0, numels_[i]};
}

void Sharding::attach(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
                      const std::vector<bool>& movable) {
  if (parts_only()) {
    parts_ = std::make_unique<PartitionedParameters>(
        partition_, options_.communicator->rank(), parameters.empty() ? at::kFloat : parameters.front().scalar_type());
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
  gradients_ = std::make_unique<GradientReducer>(options_.communicator, queue_, partition_, parameters, names,
                                                 options_.gradients);
}

void Sharding::attach_frozen(at::ScalarType dtype, std::vector<bool> coded) {
  frozen_ = std::make_unique<PartitionedParameters>(frozen_partition_, options_.communicator->rank(), dtype,
                                                    std::move(coded));
  gatherer_->set_frozen(frozen_.get());
}

at::Tensor Sharding::updated_values(std::size_t i) const {
  if (parts_only()) return parts_->part(i);
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
  std::vector<at::Tensor> mine;
  for (std::size_t i = 0; i < numels_.size(); ++i) {
    const Range part = partition_.part(i, options_.communicator->rank());
    const at::Tensor gradient = gradients_->gradient(i);
    mine.push_back(local || partitioned() ? gradient : gradient.narrow(0, part.offset, part.numel));
  }
  std::vector<const at::Tensor*> pointers;
  for (const at::Tensor& one : mine) pointers.push_back(&one);
  if (by_block) return sums_of_squares(pointers);
  return {sum_of_squares(pointers)};
}

StepAgreement Sharding::exchange(const std::string& step, const std::vector<double>& numbers, bool norm) {
  const int own = options_.communicator->rank();
  const bool local = gradients_->local();
  const bool by_block = norm && !local;
  const std::vector<SumOfSquares> squares = own_squares(by_block);

  std::vector<at::Tensor> doubles, bytes;
  for (int rank = 0; rank < options_.communicator->size(); ++rank) {
    const std::int64_t sums = by_block ? blocks_of(rank) : 1;
    const auto count = static_cast<std::int64_t>(numbers.size()) + 2 * sums;
    doubles.push_back(at::empty({count}, at::kDouble));
    bytes.push_back(at::empty({static_cast<std::int64_t>(numels_.size())}, at::kByte));
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
    parts.push_back(at::empty({blocks_of(rank) * static_cast<std::int64_t>(width)}, at::kDouble));
  }
  std::copy(per_block.begin(), per_block.end(),
            parts[static_cast<std::size_t>(options_.communicator->rank())].mutable_data_ptr<double>());
  options_.communicator->all_gather(name, parts);
  std::vector<const double*> pointers;
  for (const at::Tensor& part : parts) pointers.push_back(part.const_data_ptr<double>());
  return add_blocks(pointers, width);
}

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/memory/parameter_source.hpp"
#include "core/zero/partition.hpp"
#include "core/zero/secondary_partition.hpp"
#include "core/zero/work_queue.hpp"

namespace capstan {

/// Stage 3: this rank's parts of the compute copies of all parameters, in one piece of memory.
class PartitionedParameters {
 public:
  /// Without values. `parameters`: how many of them the partition has.
  PartitionedParameters(const Partition& partition, int rank, std::size_t parameters, at::ScalarType dtype);

  /// Copies this rank's part of the values of parameter i.
  void take(std::size_t i, const at::Tensor& whole);
  /// This rank's part of parameter i, one dimension.
  at::Tensor part(std::size_t i) const { return parts_[i]; }
  /// Fills wholes with the parts of all ranks, in one call; `quantized`: with what 8-bit codes stand for (qwZ).
  void gather(Communicator& communicator, const std::string& name, const std::vector<ParameterSource::Request>& wholes,
              bool quantized) const;

 private:
  const Partition& partition_;
  int rank_;
  std::vector<at::Tensor> parts_;
};

/// Brings wholes from the ranks' parts: through a queue, in the order of the calls, which is that of all ranks.
class PartGatherer final : public ParameterSource {
 public:
  struct Options {
    bool quantized = false;   // zero_quantized_weights
    int secondary_ranks = 1;  // zero_hpz_partition_size: ranks that follow one another; 1: none
  };
  PartGatherer(Communicator& communicator, WorkQueue& queue, const PartitionedParameters& parts, const Options& options)
      : communicator_(communicator),
        queue_(queue),
        parts_(parts),
        options_(options),
        secondary_(communicator.rank(), options.secondary_ranks) {}

  /// What the calls from here on belong to, "step 12".
  void name(std::string step) { step_ = std::move(step); }

  Ticket fetch(const std::string& what, std::vector<Request> requests) override;
  void wait(Ticket ticket) override { queue_.wait(ticket); }
  /// The parts have changed.
  void forget() { secondary_.forget(); }

 private:
  Communicator& communicator_;
  WorkQueue& queue_;
  const PartitionedParameters& parts_;
  Options options_;
  SecondaryPartition secondary_;
  std::string step_ = "start";
};

}  // namespace capstan

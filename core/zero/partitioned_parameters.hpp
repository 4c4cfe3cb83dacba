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

/// Stage 3: this rank's parts of the compute copies of parameters, in one piece of memory but for those that are kept
/// as 8-bit codes.
class PartitionedParameters {
 public:
  /// Makes room, without values. `coded[i]`: parameter i is kept as codes (zero_quantized_nontrainable_weights); empty:
  /// none is.
  PartitionedParameters(const Partition& partition, int rank, at::ScalarType dtype, std::vector<bool> coded = {});

  std::size_t size() const { return parts_.size(); }
  /// Copies this rank's part of the values of parameter i.
  void take(std::size_t i, const at::Tensor& whole);
  /// The same from the part alone, one dimension.
  void take_part(std::size_t i, const at::Tensor& values);
  /// This rank's part of parameter i, one dimension; of a coded one, a copy.
  at::Tensor part(std::size_t i) const;
  /// Fills wholes with the parts of all ranks, in one call; `quantized`: with what 8-bit codes stand for (qwZ).
  void gather(Communicator& communicator, const std::string& name, const std::vector<ParameterSource::Request>& wholes,
              bool quantized) const;

 private:
  const Partition& partition_;
  int rank_;
  at::ScalarType dtype_;
  std::vector<bool> coded_;
  std::vector<at::Tensor> parts_, codes_;  // a parameter has an entry in one of the two
};

/// Gathers whole parameters from the ranks' parts, through a queue: in the order of the calls, which is the same on all
/// ranks.
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
        secondary_(communicator.rank(), options.secondary_ranks),
        frozen_secondary_(communicator.rank(), options.secondary_ranks) {}

  /// Frozen parameters: requests count them after the others. Their parts change by forget_frozen() alone.
  void set_frozen(const PartitionedParameters* frozen) { frozen_ = frozen; }

  /// What the calls from here on belong to, "step 12".
  void name(std::string step) { step_ = std::move(step); }

  Ticket fetch(const std::string& what, std::vector<Request> requests) override;
  void wait(Ticket ticket) override { queue_.wait(ticket); }
  /// Called when the parts have changed: their second copies are out of date.
  void forget() { secondary_.forget(); }
  void forget_frozen() { frozen_secondary_.forget(); }

 private:
  void bring(const PartitionedParameters& parts, SecondaryPartition& secondary, const std::string& name,
             const std::vector<Request>& wholes);

  Communicator& communicator_;
  WorkQueue& queue_;
  const PartitionedParameters& parts_;
  Options options_;
  const PartitionedParameters* frozen_ = nullptr;
  SecondaryPartition secondary_, frozen_secondary_;
  std::string step_ = "start";
};

}  // namespace capstan

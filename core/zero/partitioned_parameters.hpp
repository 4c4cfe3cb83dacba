#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/memory/parameter_source.hpp"
#include "core/zero/coded_parts.hpp"
#include "core/zero/part_store.hpp"
#include "core/zero/partition.hpp"
#include "core/zero/secondary_partition.hpp"
#include "core/zero/work_queue.hpp"

namespace capstan {

/// Reads from a store that are under way. Whoever drops the reads waits for them: nothing may write to memory that
/// goes.
class PartReads {
 public:
  PartReads() = default;
  ~PartReads() { end(); }
  PartReads(const PartReads&) = delete;

  /// `to` may be in the memory of a device, which wait() fills then.
  void start(PartStore& store, std::size_t parameter, const at::Tensor& to);
  /// Waits for all of them; throws what the first that failed threw, now and again.
  void wait();

 private:
  void end() noexcept;

  std::vector<std::pair<PartStore*, PartStore::Ticket>> under_way_;
  std::vector<std::pair<at::Tensor, at::Tensor>> for_devices_;  // from host memory, to the device's
  std::exception_ptr failure_;
};

/// Stage 3: this rank's parts of the compute copies of parameters, in one piece of memory but for those that are kept
/// elsewhere.
class PartitionedParameters {
 public:
  /// Where parts are that do not lie in the common memory. An empty list: none of them.
  struct Places {
    std::vector<bool> coded;           // kept as 8-bit codes (zero_quantized_nontrainable_weights)
    std::vector<at::Tensor> in_place;  // where it is defined: the part's own memory, one dimension
    PartStore* store = nullptr;        // must outlive this; keeps the parts of the stored parameters
    std::vector<bool> stored;
    std::size_t first_in_store = 0;  // the number of parameter 0 in the store
  };

  /// Makes room, without values: in the memory of the options' device.
  PartitionedParameters(const Partition& partition, int rank, const at::TensorOptions& options, Places places);

  std::size_t size() const { return parts_.size(); }
  bool stored(std::size_t i) const { return places_.stored[i]; }
  /// Whether the part's memory was given, so that who gave it needs no copy.
  bool in_place(std::size_t i) const { return places_.in_place[i].defined(); }
  /// Copies this rank's part of the values of parameter i. Throws RuntimeFault where a store fails.
  void take(std::size_t i, const at::Tensor& whole);
  /// The same from the part alone, one dimension.
  void take_part(std::size_t i, const at::Tensor& values);
  /// From here on parameter i travels as codes, and its values are those of these scales; or as values again. On all
  /// ranks alike.
  void set_scales(std::size_t i, std::optional<PartScales> scales) { scales_[i] = std::move(scales); }
  /// The part that this rank has of parameter i, one dimension; a copy where the part is coded or stored.
  at::Tensor part(std::size_t i) const;
  /// The same where it lies in memory, else undefined.
  const at::Tensor& part_in_memory(std::size_t i) const { return parts_[i]; }
  /// Starts to read this rank's part of a stored parameter into its place in the whole.
  void start_read(const ParameterSource::Request& whole, PartReads& reads) const;
  /// Fills wholes with the parts of all ranks, in one call; `quantized`: with what 8-bit codes stand for (qwZ). Of
  /// stored parameters this rank's part must have been read.
  void gather(Communicator& communicator, const std::string& name, const std::vector<ParameterSource::Request>& wholes,
              bool quantized) const;

 private:
  const Partition& partition_;
  int rank_;
  at::TensorOptions options_;
  Places places_;
  void gather_coded(Communicator& communicator, const std::string& name,
                    const std::vector<ParameterSource::Request>& wholes) const;

  std::vector<at::Tensor> parts_, codes_;  // a parameter that is not stored has an entry in one of the two
  std::vector<std::optional<PartScales>> scales_;
};

/// Gathers whole parameters from the ranks' parts, through a queue: in the order of the calls, which is the same on all
/// ranks. Stored parts are read from the call of fetch() on, whatever the queue is busy with. A single process
/// has nothing to gather: what it fetches has come as soon as the reads are done, in any order.
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
  void wait(Ticket ticket) override;
  /// Called when the parts have changed: their second copies are out of date.
  void forget() { secondary_.forget(); }
  void forget_frozen() { frozen_secondary_.forget(); }

 private:
  /// The requests of trained parameters and of frozen ones, each counted from 0.
  struct Wholes {
    std::vector<Request> trained, frozen;
  };
  Wholes split(const std::vector<Request>& requests) const;
  void start_reads(const Wholes& wholes, PartReads& reads) const;
  void bring_all(const std::string& name, const Wholes& wholes);
  void bring(const PartitionedParameters& parts, SecondaryPartition& secondary, const std::string& name,
             const std::vector<Request>& wholes);

  Communicator& communicator_;
  WorkQueue& queue_;
  const PartitionedParameters& parts_;
  Options options_;
  const PartitionedParameters* frozen_ = nullptr;
  SecondaryPartition secondary_, frozen_secondary_;
  std::string step_ = "start";
  std::map<Ticket, std::shared_ptr<PartReads>> reads_;  // a single process: what is under way or has failed
  Ticket last_ = 0;                                     // a single process
};

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/memory/sum_of_squares.hpp"
#include "core/zero/arriving_parameters.hpp"
#include "core/zero/flat_parameters.hpp"
#include "core/zero/gradient_reducer.hpp"
#include "core/zero/partition.hpp"
#include "core/zero/partitioned_parameters.hpp"
#include "core/zero/work_queue.hpp"

namespace capstan {

/// How the trainable parameters of a model are trained by several processes, or by one that holds parts alone.
struct ShardingOptions {
  std::shared_ptr<Communicator> communicator;
  std::int64_t reduce_bucket_size = 500'000'000, gather_bucket_size = 500'000'000;  // elements
  bool gather_by_broadcast = false;
  bool overlap = false;               // a thread talks to the other ranks while forward and backward go on
  std::function<void()> bind_thread;  // called by that thread before anything else
  WorkQueue::AfterThis after_this;    // orders streams of the device where threads hand work over; null: the host
  bool whole_parameters = false;      // the optimizer needs each of them in one piece
  /// Trainable parameters whose gradients are made from those of others; see Partition::Parameter.
  struct Given {
    std::size_t parameter;
    std::optional<std::size_t> like;
  };
  std::vector<Given> given;
  PartGatherer::Options parts;  // stage 3
  bool parts_on_host = false;   // stage 3 on a device: parts stay in host memory, and go to the device when gathered
  GradientReducer::Options gradients;
};

/// Stage 3: what is kept outside memory. The stores must outlive the sharding.
struct StoredValues {
  PartStore* parts = nullptr;
  GradientStore* gradients = nullptr;  // null: gradients stay in memory
  std::vector<bool> trained, frozen;   // one a trained, one a frozen parameter; empty: none is
};

/// What the ranks tell each other at the end of a step.
struct StepAgreement {
  std::vector<std::vector<double>> numbers;  // each rank's, in rank order
  std::vector<std::uint8_t> present;         // one a parameter: 1 when some rank has a gradient of it
  SumOfSquares squares;                      // taken over all mean gradients, when asked for; in a local step the mean
                                             // over ranks of what each takes over its own gradients
};

/// The partition of a model over the ranks, the exchange of its gradients and, from stage 1 on, of its parameters,
/// which at stage 3 are remote between their uses.
class Sharding {
 public:
  /// `numels`, `frozen_numels`: elements of the trainable and the frozen parameters; stage 3 partitions both.
  Sharding(ShardingOptions options, const std::vector<std::int64_t>& numels,
           const std::vector<std::int64_t>& frozen_numels);

  /// Whether each rank updates its part alone: from stage 1 on.
  bool partitioned() const { return options_.gradients.stage > 0; }
  /// Stage 3: each rank holds its part alone.
  bool parts_only() const { return options_.gradients.stage == 3; }
  /// What this rank updates of parameter i, and what another does.
  Range updated(std::size_t i) const { return updated(i, options_.communicator->rank()); }
  Range updated(std::size_t i, int rank) const;

  /// What this rank owns of parameter i, at every stage.
  Range owned(std::size_t i) const { return partition_.part(i, options_.communicator->rank()); }

  /// Takes the parameters: moves them together at stages 1 and 2 where `movable` allows it, makes room for this rank's
  /// parts at stage 3, and hooks on their gradients. At stage 3 in a single process a movable parameter's own memory is
  /// that of its part, and must stay; with several, nothing is moved.
  void attach(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
              const std::vector<bool>& movable, StoredValues stored_values = {});
  GradientReducer& gradients() { return *gradients_; }
  /// The part of the compute copy of parameter i that this rank updates, one dimension. There is one from stage 1 on,
  /// but undefined where it is on a store.
  at::Tensor updated_values(std::size_t i) const;
  /// Stage 3: makes room for this rank's parts of the frozen parameters. `coded[k]`: kept as 8-bit codes, which a
  /// single process does without. `movable` as in attach().
  void attach_frozen(const std::vector<at::Tensor>& frozen, at::ScalarType dtype, std::vector<bool> coded,
                     const std::vector<bool>& movable);
  PartitionedParameters& frozen() { return *frozen_; }
  Range frozen_part(std::size_t k) const { return frozen_partition_.part(k, options_.communicator->rank()); }
  /// Stage 3: copies this rank's part of the values of parameter i.
  void take(std::size_t i, const at::Tensor& whole) { parts_->take(i, whole); }
  /// Stage 3: how parameter i travels until the next call.
  void set_scales(std::size_t i, std::optional<PartScales> scales) { parts_->set_scales(i, std::move(scales)); }
  /// Stage 3: whether parameter i is its part, so that an update of the part needs no sharing.
  bool in_place(std::size_t i) const { return parts_->in_place(i); }
  /// The compute copies at stages 1 and 2.
  FlatParameters& parameters() { return *parameters_; }
  /// Stages 1 and 2 with overlap: what gathers the compute copies while forward goes on; else null.
  ArrivingParameters* arriving() { return arriving_.get(); }
  /// Stage 3: what gathers whole parameters from the ranks' parts.
  PartGatherer& gatherer() { return *gatherer_; }

  /// The whole of parameter i in fp32, from the ranks' parts.
  at::Tensor gather_master(const std::string& step, std::size_t i, const at::Tensor& part);

  /// One exchange: this rank's numbers, which gradients it has, and the sum of their squares. With `norm` the sum has
  /// the same bits however the gradients are cut; else it costs two numbers a rank and tells whether all are finite. A
  /// single process adds up blocks in their order, as one without sharding does.
  StepAgreement exchange(const std::string& step, const std::vector<double>& numbers, bool norm);
  /// Sums over fixed blocks: `per_block[...]` holds `width` numbers for each block that this rank updates, in order of
  /// parameters; adds them up, parameter by parameter, in the same order on every rank. Stage 0 has all of them.
  std::vector<double> sum_blocks(const std::string& name, const std::vector<double>& per_block, std::size_t width);
  /// Waits for all that another thread exchanges with the ranks. Throws RuntimeFault.
  void settle() { queue_.drain(); }
  /// Drops what is not under way, and waits for what is.
  void discard() noexcept { queue_.discard(); }
  Communicator& communicator() { return *options_.communicator; }
  std::int64_t numel(std::size_t i) const { return numels_[i]; }

 private:
  /// Squares of the mean gradients that this rank owns, or of its own gradients in a local step.
  std::vector<SumOfSquares> own_squares(bool by_block) const;
  std::int64_t blocks_of(int rank) const;
  /// Adds the blocks of each parameter; `of_rank[r]` are rank r's.
  std::vector<double> add_blocks(const std::vector<const double*>& of_rank, std::size_t width) const;

  ShardingOptions options_;
  std::vector<std::int64_t> numels_;
  Partition partition_, frozen_partition_;
  StoredValues stored_;
  std::unique_ptr<FlatParameters> parameters_;
  std::unique_ptr<PartitionedParameters> parts_, frozen_;
  WorkQueue queue_;  // its thread uses what the next ones hold while they live, and the above
  std::unique_ptr<PartGatherer> gatherer_;
  std::unique_ptr<ArrivingParameters> arriving_;
  std::unique_ptr<GradientReducer> gradients_;
};

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/zero/gradient_hooks.hpp"
#include "core/zero/mixed_bucket.hpp"
#include "core/zero/owned_gradients.hpp"
#include "core/zero/partition.hpp"
#include "core/zero/quantized_collectives.hpp"
#include "core/zero/sparse_rows.hpp"
#include "core/zero/work_queue.hpp"

namespace capstan {

/// Averages gradients over the ranks, bucket by bucket.
///
/// Hooks on the parameters' autograd nodes take each gradient as it appears. Stages 0 and 1 add it to one buffer of all
/// gradients and reduce that once a step; stages 2 and 3 reduce in every backward and keep what this rank owns. Buckets
/// are reduced in their order on every rank, whatever order the gradients come in. An element's result is the same at
/// every stage, with every bucket size, with and without overlap: a sum in rank order in fp32. With several
/// micro-batches a step that holds of stages 0 and 1, which add up before they reduce, and of stages 2 and 3, which
/// reduce before they add up. A bucket waits for each parameter that has had a gradient in an earlier step, on any
/// rank, unless the parameter's layer was left out. A gradient that comes when its bucket has been reduced is reduced
/// by itself and added, which may round otherwise: the first gradient of a parameter that the run's first backward did
/// not use. A single process reduces nothing: from stage 2 on each gradient is kept as it appears.
class GradientReducer {
 public:
  struct Options {
    int stage = 0;
    bool during_backward = true;  // a bucket is reduced once it is complete
    at::ScalarType accumulation = at::kFloat, communication = at::kFloat;
    double scale_before_sum = 1, scale_after_sum = 1;  // scale each rank's gradients, and their sum over ranks
    /// How each parameter's gradient is sent; empty: all of them in the dtype `communication`.
    std::vector<GradientTransport> transports;
    bool sparse = false;       // gradients may come as sparse tensors
    bool sparse_rows = false;  // stage 0: the rows that sparse gradients have are kept
    /// Gradients are sent as 4-bit codes from stage 2 on, over several hosts (ZeRO++, qgZ).
    bool quantized = false;
    std::optional<ErrorFeedback> feedback;
  };

  /// `queue` does what the ranks do together, and must outlive this. `stored`: from stage 2 on.
  GradientReducer(std::shared_ptr<Communicator> communicator, WorkQueue& queue, const Partition& partition,
                  std::vector<at::Tensor> parameters, std::vector<std::string> names, const Options& options,
                  GradientsOnStore stored = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;

  /// Called around the backward of one micro-batch. `last`: this is the step's last micro-batch. `name`: "step 12".
  /// `local`: nothing is exchanged in this step (stages 0 and 1). `left_out`: parameters of layers that did not run,
  /// the same on all ranks.
  void begin(const std::string& name, bool last, bool local = false, const std::vector<std::size_t>& left_out = {});
  void end();

  /// `complete` is called when gradient(i) has the step's values, perhaps while backward goes on, and again where more
  /// is added. Not in a local step. [the queue's thread]
  void on_complete(std::function<void(std::size_t i)> complete) { complete_ = std::move(complete); }

  bool local() const { return local_; }
  /// The mean gradient, over ranks, of the range that this rank updates of parameter i, one dimension; valid after
  /// end() of the last micro-batch. In a local step it is this rank's own gradient of the whole parameter. Undefined
  /// where it went to a store.
  at::Tensor gradient(std::size_t i) const;
  /// Whether the gradient of parameter i went to a store; then the squares of its blocks, valid as gradient().
  bool stored(std::size_t i) const { return owned_ && owned_->stored(i); }
  const std::vector<SumOfSquares>& squares_of_stored(std::size_t i) const { return owned_->squares(i); }
  /// Some rank has had a gradient of the parameters whose element is not 0.
  void expect(const std::vector<std::uint8_t>& present);
  /// 1 for parameters that got a gradient on this rank in this step.
  const std::vector<std::uint8_t>& touched() const { return touched_; }
  /// The rows that sparse gradients have, over all ranks; valid as gradient(). Null where nobody wants them.
  const SparseRows* sparse_rows() const { return rows_ ? &*rows_ : nullptr; }
  /// Parameter i, whose bucket is given, has a gradient in this step: whoever wrote it into gradient(i) says so, on
  /// every rank.
  void note_given(std::size_t i) { touched_[i] = 1; }
  /// The gradient of parameter i is zero where this step gave none. Called by every rank, after end() of the last
  /// micro-batch.
  void give_zeros(std::size_t i);
  /// Forgets the step's gradients. Nothing may be under way.
  void drop();
  /// Forgets what quantisation has lost of gradients so far, which would be added to the next ones.
  void forget_errors();

 private:
  struct BucketState {
    std::size_t missing = 0;  // gradients that have not come in this backward
    bool closed = false;
    at::Tensor buffer;  // from stage 2 on: the gradients of this backward
  };

  /// Contributions that the bucket of parameter i waits for.
  int expected(std::size_t i) const { return left_out_[i] && !used_still_[i] ? 0 : most_[i]; }
  void learn();
  void arrived(std::size_t i);
  void take(std::size_t i, at::Tensor& gradient);
  void keep_alone(std::size_t i, at::Tensor& gradient);
  void close(std::size_t bucket);
  void close_complete();
  void reduce_late();
  void end_alone();
  void note_under_way(WorkQueue::Ticket ticket, std::int64_t elements);
  /// Waits for the oldest.
  void wait_for_one();
  void forget_under_way();
  void reduce(const std::string& name, std::size_t bucket, at::Tensor source, bool add);
  void keep(std::size_t bucket, const at::Tensor& all, const at::Tensor& mean, bool add);
  void keep_in_place(std::size_t bucket, const at::Tensor& all, const at::Tensor& mean, bool add);
  void find_gaps();
  void build_quantized();
  at::Tensor source_of(std::size_t bucket);
  at::Tensor region(std::size_t i);
  /// A buffer for a bucket, whose values nobody has written.
  at::Tensor take_buffer();
  void return_buffer(at::Tensor buffer);
  /// Tensor options for memory on the parameters' device.
  at::TensorOptions memory(at::ScalarType dtype) const;
  bool reduces_now() const { return !local_ && (options_.stage >= 2 || last_); }
  bool whole_gradients() const { return options_.stage < 2; }
  bool keeps_alone() const { return !whole_gradients() && communicator_->size() == 1; }

  std::shared_ptr<Communicator> communicator_;
  const Partition& partition_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  Options options_;

  at::Tensor flat_;                      // stages 0 and 1: all gradients
  std::optional<OwnedGradients> owned_;  // from stage 2 on
  std::function<void(std::size_t)> complete_;
  std::vector<BucketState> buckets_;
  std::vector<std::vector<Range>> gaps_;  // of each bucket, from its beginning: what aligns parameters; stages 2 and 3
  std::vector<std::optional<MixedBucket>> mixed_;  // set for buckets whose gradients do not all travel alike
  std::vector<std::unique_ptr<QuantizedReduceScatter>> quantized_;  // one a bucket, or none
  /// How often a parameter's gradient comes in a backward: the most so far (1 before the first); in this one; and
  /// whether the first backward that ran the parameter's layer is over.
  std::vector<int> most_, fired_;
  std::vector<std::uint8_t> known_;
  std::vector<std::uint8_t> left_out_;    // in this backward
  std::vector<std::uint8_t> used_still_;  // had a gradient, though its layer was left out: tied to another
  std::vector<std::uint8_t> filled_;      // its region holds a gradient
  std::vector<std::uint8_t> touched_;
  std::optional<SparseRows> rows_;
  std::vector<std::uint8_t> late_;          // a bucket: a gradient came after it was closed
  std::vector<std::uint8_t> reduced_once_;  // a bucket: in this step
  std::size_t next_ = 0;                    // the bucket to be closed next
  bool inside_ = false, last_ = false, local_ = false;
  std::string name_;
  std::mutex buffers_mutex_;
  std::vector<at::Tensor> free_buffers_;
  /// A reduction that has a buffer, or in a single process a gradient that is being kept.
  struct UnderWay {
    WorkQueue::Ticket ticket;
    std::int64_t elements;
  };
  std::deque<UnderWay> under_way_;
  std::int64_t elements_under_way_ = 0;
  WorkQueue& queue_;
  std::optional<GradientHooks> hooks_;  // last: they call arrived()
};

}  // namespace capstan

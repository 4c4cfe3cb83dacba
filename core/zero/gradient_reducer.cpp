#include "core/zero/gradient_reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/host_tensor.hpp"

namespace capstan {
namespace {

/// Keeps a tensor's memory, of another stream perhaps, until the calling thread's stream has come to its present end.
void note_use_here(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  at::Tensor(tensor).record_stream(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

}  // namespace

GradientReducer::GradientReducer(std::shared_ptr<Communicator> communicator, WorkQueue& queue,
                                 const Partition& partition, std::vector<at::Tensor> parameters,
                                 std::vector<std::string> names, const Options& options, GradientsOnStore stored)
    : communicator_(std::move(communicator)),
      partition_(partition),
      parameters_(std::move(parameters)),
      names_(std::move(names)),
      options_(options),
      buckets_(partition.buckets().size()),
      most_(parameters_.size(), 1),
      fired_(parameters_.size()),
      known_(parameters_.size()),
      left_out_(parameters_.size()),
      used_still_(parameters_.size()),
      filled_(parameters_.size()),
      touched_(parameters_.size()),
      late_(buckets_.size()),
      reduced_once_(buckets_.size()),
      queue_(queue) {
  for (std::size_t i = 0; i < most_.size(); ++i) {
    if (partition_.buckets()[partition_.bucket_of(i)].given) most_[i] = 0;
  }
  if (!whole_gradients()) find_gaps();
  mixed_.resize(buckets_.size());
  for (std::size_t i = 0; i < options_.transports.size(); ++i) {
    std::optional<MixedBucket>& mixed = mixed_[partition_.bucket_of(i)];
    if (mixed || options_.transports[i] == GradientTransport{options_.communication, 0}) continue;
    mixed.emplace(partition_, partition_.buckets()[partition_.bucket_of(i)], options_.transports);
  }
  if (options_.quantized && communicator_->ranks_per_host() < communicator_->size()) build_quantized();
  if (options_.sparse_rows) rows_.emplace(parameters_);
  if (whole_gradients()) {
    flat_ = at::zeros({partition_.numel()}, memory(options_.accumulation));
  } else {
    owned_.emplace(partition_, communicator_->rank(), memory(options_.accumulation), std::move(stored));
  }
  hooks_.emplace(parameters_, [this](std::size_t i) { arrived(i); });
}

at::TensorOptions GradientReducer::memory(at::ScalarType dtype) const {
  return at::TensorOptions(dtype).device(parameters_.empty() ? at::Device(at::kCPU) : parameters_.front().device());
}

void GradientReducer::find_gaps() {
  for (const Bucket& bucket : partition_.buckets()) {
    std::vector<Range>& gaps = gaps_.emplace_back();
    for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
      const std::size_t i = partition_.order()[at];
      const std::int64_t numel = partition_.numel_of(i), gap = Partition::aligned(numel) - numel;
      if (gap > 0) gaps.push_back({partition_.first(i) + numel - bucket.first, gap});
    }
  }
}

void GradientReducer::build_quantized() {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const at::Tensor& parameter : parameters_) shapes.push_back(parameter.sizes().vec());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    quantized_.push_back(std::make_unique<QuantizedReduceScatter>(
        communicator_, communicator_->ranks_per_host(), gradient_ranges(partition_, b, shapes), options_.feedback));
  }
}

GradientReducer::~GradientReducer() { queue_.discard(); }

void GradientReducer::begin(const std::string& name, bool last, bool local, const std::vector<std::size_t>& left_out) {
  forget_under_way();
  name_ = name;
  local_ = local;
  last_ = last;
  inside_ = true;
  next_ = 0;
  std::fill(fired_.begin(), fired_.end(), 0);
  std::fill(late_.begin(), late_.end(), 0);
  std::fill(left_out_.begin(), left_out_.end(), 0);
  for (const std::size_t i : left_out) left_out_[i] = 1;
  if (options_.stage >= 2) std::fill(filled_.begin(), filled_.end(), 0);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = partition_.buckets()[b];
    buckets_[b].closed = false;
    buckets_[b].missing = 0;
    for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
      buckets_[b].missing += expected(partition_.order()[at]) > 0;
    }
  }
}

void GradientReducer::note_under_way(WorkQueue::Ticket ticket, std::int64_t elements) {
  under_way_.push_back({ticket, elements});
  elements_under_way_ += elements;
}

void GradientReducer::wait_for_one() {
  queue_.wait(under_way_.front().ticket);
  elements_under_way_ -= under_way_.front().elements;
  under_way_.pop_front();
}

void GradientReducer::forget_under_way() {
  under_way_.clear();
  elements_under_way_ = 0;
}

at::Tensor GradientReducer::take_buffer() {
  // Backward must not run away from the reduction, or all gradients would wait in buffers.
  while (under_way_.size() >= Partition::kBuffers) wait_for_one();
  const std::lock_guard lock(buffers_mutex_);
  if (free_buffers_.empty()) return at::empty({partition_.largest_bucket()}, memory(options_.communication));
  at::Tensor buffer = std::move(free_buffers_.back());
  free_buffers_.pop_back();
  return buffer;
}

void GradientReducer::return_buffer(at::Tensor buffer) {
  const std::lock_guard lock(buffers_mutex_);
  if (free_buffers_.size() < Partition::kBuffers) free_buffers_.push_back(std::move(buffer));
}

/// Where parameter i's gradient is gathered.
at::Tensor GradientReducer::region(std::size_t i) {
  const std::int64_t numel = parameters_[i].numel();
  if (whole_gradients()) return flat_.narrow(0, partition_.first(i), numel).view(parameters_[i].sizes());
  const std::size_t b = partition_.bucket_of(i);
  if (!buckets_[b].buffer.defined()) buckets_[b].buffer = take_buffer();
  return buckets_[b]
      .buffer.narrow(0, partition_.first(i) - partition_.buckets()[b].first, numel)
      .view(parameters_[i].sizes());
}

void GradientReducer::take(std::size_t i, at::Tensor& gradient) {
  at::Tensor here = region(i);
  if (filled_[i]) {
    here.add_(gradient);
  } else {
    here.copy_(gradient);
  }
  filled_[i] = touched_[i] = 1;
  // The program's stream may have made the gradient, and autograd runs this on the stream of the parameter.
  note_use_here(gradient);
  gradient.reset();
}

void GradientReducer::arrived(std::size_t i) {
  at::Tensor& gradient = parameters_[i].mutable_grad();
  if (!inside_ || !gradient.defined()) return;
  at::NoGradGuard no_grad;
  if (gradient.layout() != at::kStrided && !options_.sparse) {
    throw RuntimeFault("parameter '" + names_[i] +
                       "': has a sparse gradient, and optimizers update dense ones. Set sparse_gradients, or build "
                       "the embedding with sparse = false.");
  }
  if (rows_) rows_->note(i, gradient);
  if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
  if (keeps_alone()) return keep_alone(i, gradient);
  BucketState& bucket = buckets_[partition_.bucket_of(i)];
  ++fired_[i];
  if (bucket.closed) {
    // It stays with the parameter until the end of backward.
    touched_[i] = 1;
    late_[partition_.bucket_of(i)] = 1;
    return;
  }
  take(i, gradient);
  if (fired_[i] == expected(i)) --bucket.missing;
  if (options_.during_backward && reduces_now()) close_complete();
}

/// What a parameter's gradient is in a single process, its mean is.
void GradientReducer::keep_alone(std::size_t i, at::Tensor& gradient) {
  at::Tensor mean = gradient.contiguous().view({-1});
  gradient.reset();
  const bool add = touched_[i] != 0;
  filled_[i] = touched_[i] = 1;
  // Who adds to it may write to it, and autograd may use the same memory for another gradient: beyond the reference
  // here and that of the caller of the hook.
  if (add && mean.storage().use_count() > 2) mean = mean.clone();
  // As in take_buffer(), but one large gradient waits for all others.
  while (!under_way_.empty() && elements_under_way_ + mean.numel() > Partition::kLargestBucket) wait_for_one();
  const std::int64_t elements = mean.numel();
  const auto ticket = queue_.submit([this, i, mean = std::move(mean), add, last = last_] {
    owned_->keep(i, mean, add, last);
    note_use_here(mean);
    if (last && complete_) complete_(i);
  });
  note_under_way(ticket, elements);
}

void GradientReducer::end_alone() {
  queue_.drain();
  forget_under_way();
  if (!last_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!touched_[i]) {
      owned_->clear(i);
    } else if (!filled_[i]) {
      owned_->measure(i);
    }
  }
}

void GradientReducer::close_complete() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) close(next_++);
}

at::Tensor GradientReducer::source_of(std::size_t b) {
  const Bucket& bucket = partition_.buckets()[b];
  if (whole_gradients()) return flat_.narrow(0, bucket.first, bucket.numel);
  if (!buckets_[b].buffer.defined()) buckets_[b].buffer = take_buffer();
  return buckets_[b].buffer.narrow(0, 0, bucket.numel);
}

void GradientReducer::close(std::size_t b) {
  const Bucket& bucket = partition_.buckets()[b];
  if (bucket.given) {
    buckets_[b].closed = true;
    return;
  }
  at::Tensor source = source_of(b);
  for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
    const std::size_t i = partition_.order()[at];
    if (!filled_[i]) region(i).zero_();
  }
  // Gaps travel with the gradients, and count in the scales of the blocks that they fall into. A buffer's memory is
  // fresh, or holds another bucket's gradients.
  if (!whole_gradients()) {
    for (const Range& gap : gaps_[b]) source.narrow(0, gap.offset, gap.numel).zero_();
  }
  buckets_[b].closed = true;
  const bool add = options_.stage >= 2 && reduced_once_[b];
  reduced_once_[b] = 1;
  at::Tensor buffer = std::move(buckets_[b].buffer);
  buckets_[b].buffer = at::Tensor();
  const auto ticket =
      queue_.submit([this, name = name_ + ", gradient bucket " + std::to_string(b), b, source, add, buffer] {
        reduce(name, b, source, add);
        if (buffer.defined()) return_buffer(buffer);
      });
  if (buffer.defined()) note_under_way(ticket, buffer.numel());
}

void GradientReducer::reduce(const std::string& name, std::size_t b, at::Tensor source, bool add) {
  at::NoGradGuard no_grad;
  const Bucket& bucket = partition_.buckets()[b];
  const auto own = static_cast<std::size_t>(communicator_->rank());
  if (options_.scale_before_sum != 1) source.mul_(options_.scale_before_sum);
  const at::Tensor sent = source.to(options_.communication);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    parts.push_back(
        sent.narrow(0, bucket.rank_first[r] - bucket.first, bucket.rank_first[r + 1] - bucket.rank_first[r]));
  }
  at::Tensor mean = parts[own];
  if (mixed_[b]) {
    mixed_[b]->average(*communicator_, name, sent, options_.scale_after_sum, options_.stage == 0);
  } else if (options_.stage == 0) {
    communicator_->all_reduce(name, parts, options_.scale_after_sum);
  } else {
    at::Tensor sum =
        quantized_.empty() ? communicator_->reduce_scatter(name, parts) : quantized_[b]->reduce(name, parts);
    if (options_.scale_after_sum != 1) sum.mul_(options_.scale_after_sum);
    // Rounded to the dtype that travels, as all_reduce() does, so that all stages go on with the same values.
    mean = sum.to(options_.communication);
  }
  keep(b, sent, mean, add);
}

/// `all`: the bucket's means, which are whole at stage 0. `mean`: this rank's part.
void GradientReducer::keep(std::size_t b, const at::Tensor& all, const at::Tensor& mean, bool add) {
  if (options_.stage >= 2) {
    owned_->keep_bucket(b, mean, add, /*squares=*/last_);
  } else {
    keep_in_place(b, all, mean, add);
  }
  if (!last_ || !complete_) return;
  const Bucket& bucket = partition_.buckets()[b];
  for (std::size_t at = bucket.begin; at < bucket.end; ++at) complete_(partition_.order()[at]);
}

/// Of stages 0 and 1.
void GradientReducer::keep_in_place(std::size_t b, const at::Tensor& all, const at::Tensor& mean, bool add) {
  const Bucket& bucket = partition_.buckets()[b];
  const auto own = static_cast<std::size_t>(communicator_->rank());
  const at::Tensor& values = options_.stage == 0 ? all : mean;
  at::Tensor place = flat_.narrow(0, options_.stage == 0 ? bucket.first : bucket.rank_first[own], values.numel());
  if (add) {
    place.add_(values);
  } else if (place.const_data_ptr() != values.const_data_ptr()) {
    place.copy_(values);
  }
}

/// Gradients that came to a closed bucket, on any rank: a parameter that contributes more often than ever before.
void GradientReducer::reduce_late() {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    all.push_back(host_zeros({static_cast<std::int64_t>(buckets_.size())}, at::kByte));
  }
  std::copy(late_.begin(), late_.end(),
            all[static_cast<std::size_t>(communicator_->rank())].mutable_data_ptr<std::uint8_t>());
  communicator_->all_gather(name_ + ", late gradients", all);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const bool late = std::any_of(all.begin(), all.end(),
                                  [&](const at::Tensor& rank) { return rank.const_data_ptr<std::uint8_t>()[b] != 0; });
    if (!late) continue;
    const Bucket& bucket = partition_.buckets()[b];
    at::Tensor source = at::zeros({bucket.numel}, memory(options_.communication));
    for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
      const std::size_t i = partition_.order()[at];
      at::Tensor& gradient = parameters_[i].mutable_grad();
      if (!gradient.defined()) continue;
      source.narrow(0, partition_.first(i) - bucket.first, gradient.numel()).view(gradient.sizes()).copy_(gradient);
      gradient.reset();
    }
    reduce(name_ + ", late gradient bucket " + std::to_string(b), b, source, /*add=*/true);
  }
}

void GradientReducer::end() {
  at::NoGradGuard no_grad;
  inside_ = false;
  if (keeps_alone()) return end_alone();
  if (reduces_now()) {
    while (next_ < buckets_.size()) close(next_++);
    queue_.drain();
    forget_under_way();
    if (options_.during_backward) reduce_late();
    if (rows_) rows_->agree(*communicator_, name_);
  }
  if (local_ && last_) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!filled_[i]) region(i).zero_();
    }
  }
  learn();
}

/// Most, and not the last: a bucket that a parameter may still come to must stay open, or its sum would be rounded
/// twice.
void GradientReducer::learn() {
  for (std::size_t i = 0; i < most_.size(); ++i) {
    if (partition_.buckets()[partition_.bucket_of(i)].given) continue;
    if (left_out_[i] && fired_[i] == 0) continue;
    used_still_[i] |= left_out_[i];
    most_[i] = known_[i] ? std::max(most_[i], fired_[i]) : fired_[i];
    known_[i] = 1;
  }
}

void GradientReducer::expect(const std::vector<std::uint8_t>& present) {
  for (std::size_t i = 0; i < most_.size(); ++i) {
    if (!present[i] || partition_.buckets()[partition_.bucket_of(i)].given) continue;
    most_[i] = std::max(most_[i], 1);
    known_[i] = 1;
  }
}

void GradientReducer::give_zeros(std::size_t i) {
  if (touched_[i]) return;
  touched_[i] = 1;  // what nobody filled is zero by now, but for what went to a store
  if (keeps_alone() && owned_->stored(i))
    owned_->keep(i, at::zeros({parameters_[i].numel()}, parameters_[i].options()), false, true);
}

at::Tensor GradientReducer::gradient(std::size_t i) const {
  if (owned_) return owned_->gradient(i);
  const std::int64_t first = partition_.first(i);
  if (options_.stage == 0 || local_) return flat_.narrow(0, first, parameters_[i].numel());
  const Range part = partition_.part(i, communicator_->rank());
  return flat_.narrow(0, first + part.offset, part.numel);
}

void GradientReducer::drop() {
  inside_ = false;
  forget_under_way();
  std::fill(filled_.begin(), filled_.end(), 0);
  std::fill(touched_.begin(), touched_.end(), 0);
  if (rows_) rows_->drop();
  std::fill(reduced_once_.begin(), reduced_once_.end(), 0);
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void GradientReducer::forget_errors() {
  for (const auto& bucket : quantized_) bucket->forget_errors();
}

}  // namespace capstan

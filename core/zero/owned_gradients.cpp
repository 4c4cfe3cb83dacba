#include "core/zero/owned_gradients.hpp"

#include <ATen/ops/zeros.h>

#include <utility>

#include "core/host_tensor.hpp"

namespace capstan {
namespace {

void put(at::Tensor place, const at::Tensor& values, bool add) {
  if (add) {
    place.add_(values);
  } else {
    place.copy_(values);
  }
}

}  // namespace

OwnedGradients::OwnedGradients(const Partition& partition, int rank, const at::TensorOptions& memory,
                               GradientsOnStore stored)
    : on_store_(std::move(stored)), parts_(partition.order().size()), squares_(parts_.size()) {
  on_store_.stored.resize(parts_.size());
  std::int64_t elements = 0;
  for (const Bucket& bucket : partition.buckets()) {
    std::vector<Stretch>& stretches = stretches_.emplace_back();
    std::vector<std::size_t>& leave = stored_in_.emplace_back();
    for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
      const std::size_t i = partition.order()[at];
      parts_[i].range = partition.part(i, rank);
      if (parts_[i].range.numel == 0) continue;
      const std::int64_t from =
          partition.first(i) + parts_[i].range.offset - bucket.rank_first[static_cast<std::size_t>(rank)];
      place(i, from, stretches, elements);
      if (!on_store_.stored[i]) continue;
      leave.push_back(i);
      squares_[i].resize(static_cast<std::size_t>(blocks_in(parts_[i].range.numel)));
    }
  }
  memory_ = at::zeros({elements}, memory);
}

void OwnedGradients::place(std::size_t i, std::int64_t from, std::vector<Stretch>& stretches, std::int64_t& elements) {
  parts_[i].from = from;
  if (on_store_.stored[i]) return;
  parts_[i].to = elements;
  const std::int64_t numel = Partition::aligned(parts_[i].range.numel);  // what aligns the next one travels as well
  const bool goes_on = !stretches.empty() && stretches.back().from + stretches.back().numel == from;
  if (goes_on) {
    stretches.back().numel += numel;
  } else {
    stretches.push_back({from, numel, elements});
  }
  elements += numel;
}

void OwnedGradients::keep_bucket(std::size_t bucket, const at::Tensor& mean, bool add, bool squares) {
  for (const Stretch& stretch : stretches_[bucket]) {
    put(memory_.narrow(0, stretch.to, stretch.numel), mean.narrow(0, stretch.from, stretch.numel), add);
  }
  for (const std::size_t i : stored_in_[bucket]) {
    send(i, mean.narrow(0, parts_[i].from, parts_[i].range.numel), add, squares);
  }
}

void OwnedGradients::keep(std::size_t i, const at::Tensor& mean, bool add, bool squares) {
  if (mean.numel() == 0) return;
  if (stored(i)) return send(i, mean, add, squares);
  put(gradient(i), mean, add);
}

void OwnedGradients::send(std::size_t i, at::Tensor values, bool add, bool squares) {
  const at::Tensor kept = values.to(host_options(memory_.scalar_type()));
  on_store_.store->keep(i, kept, add);
  if (squares) squares_[i] = sums_of_squares({&kept});
}

void OwnedGradients::clear(std::size_t i) {
  if (stored(i)) {
    squares_[i].assign(squares_[i].size(), {});
  } else {
    gradient(i).zero_();
  }
}

void OwnedGradients::measure(std::size_t i) {
  if (!stored(i) || parts_[i].range.numel == 0) return;
  const at::Tensor values = host_empty({parts_[i].range.numel}, memory_.scalar_type());
  on_store_.store->read(i, values);
  squares_[i] = sums_of_squares({&values});
}

at::Tensor OwnedGradients::gradient(std::size_t i) const {
  if (stored(i)) return {};
  return memory_.narrow(0, parts_[i].range.numel == 0 ? 0 : parts_[i].to, parts_[i].range.numel);
}

}  // namespace capstan

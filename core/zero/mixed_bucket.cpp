#include "core/zero/mixed_bucket.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/host_tensor.hpp"

namespace capstan {
namespace {

/// Writes the values, one after another, into places of a tensor.
template <class Stretches>
void put(at::Tensor into, const Stretches& stretches, const at::Tensor& values) {
  std::int64_t from = 0;
  for (const auto& stretch : stretches) {
    into.narrow(0, stretch.first, stretch.numel).copy_(values.narrow(0, from, stretch.numel));
    from += stretch.numel;
  }
}

template <class Stretches>
at::Tensor taken(const at::Tensor& from, const Stretches& stretches, at::ScalarType type) {
  std::vector<at::Tensor> pieces;
  for (const auto& stretch : stretches) pieces.push_back(from.narrow(0, stretch.first, stretch.numel).to(type));
  return pieces.empty() ? at::empty({0}, from.options().dtype(type)) : at::cat(pieces);
}

/// Sums the rows that are not zero, in rank order; `values` is [rows, row].
void average_rows(Communicator& communicator, const std::string& name, at::Tensor values, at::ScalarType type,
                  double factor) {
  const at::ScalarType index_type = c10::elementSize(type) == 2 ? at::kInt : at::kLong;
  const at::Tensor own = values.ne(0).any(1).nonzero().squeeze(1);

  std::vector<at::Tensor> counts, indices, rows;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    counts.push_back(host_empty({1}, at::kLong).fill_(own.numel()));
  }
  communicator.all_gather(name + ", numbers of rows", counts);
  for (const at::Tensor& count : counts) {
    const auto number = count.item<std::int64_t>();
    indices.push_back(at::empty({number}, values.options().dtype(index_type)));
    rows.push_back(at::empty({number, values.size(1)}, values.options().dtype(type)));
  }
  const auto me = static_cast<std::size_t>(communicator.rank());
  indices[me].copy_(own);
  rows[me].copy_(values.index_select(0, own));
  communicator.all_gather(name + ", indices", indices);
  communicator.all_gather(name + ", rows", rows);

  at::Tensor sum = at::zeros(values.sizes(), values.options().dtype(at::kFloat));
  for (std::size_t rank = 0; rank < rows.size(); ++rank) sum.index_add_(0, indices[rank], rows[rank].to(at::kFloat));
  values.copy_(sum.mul_(factor).to(type));
}

}  // namespace

MixedBucket::MixedBucket(const Partition& partition, const Bucket& bucket,
                         const std::vector<GradientTransport>& transports) {
  for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
    const std::size_t i = partition.order()[at];
    const GradientTransport& transport = transports[i];
    const std::int64_t first = partition.first(i) - bucket.first;
    if (transport.row > 0) {
      rows_.push_back({{first, partition.numel_of(i)}, transport, i});
      continue;
    }
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& one) { return one.type == transport.type; });
    if (kind == kinds_.end()) {
      kind = kinds_.insert(kind, {transport.type, {}});
      kind->of_rank.resize(static_cast<std::size_t>(partition.ranks()));
    }
    for (int rank = 0; rank < partition.ranks(); ++rank) {
      const Range part = partition.part(i, rank);
      if (part.numel > 0) kind->of_rank[static_cast<std::size_t>(rank)].push_back({first + part.offset, part.numel});
    }
  }
}

void MixedBucket::average(Communicator& communicator, const std::string& name, at::Tensor values, double factor,
                          bool everywhere) const {
  const auto own = static_cast<std::size_t>(communicator.rank());
  for (const Kind& kind : kinds_) {
    const std::string what = name + ", " + c10::toString(kind.type);
    std::vector<at::Tensor> parts;
    for (const auto& stretches : kind.of_rank) parts.push_back(taken(values, stretches, kind.type));
    at::Tensor sum = communicator.reduce_scatter(what, parts);
    parts[own] = sum.mul_(factor).to(kind.type, /*non_blocking=*/false, /*copy=*/true);
    if (everywhere) communicator.all_gather(what + ", mean", parts);
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (everywhere || rank == own) put(values, kind.of_rank[rank], parts[rank]);
    }
  }
  for (const Rows& rows : rows_) {
    average_rows(communicator, name + ", embedding " + std::to_string(rows.parameter),
                 values.narrow(0, rows.where.first, rows.where.numel).view({-1, rows.transport.row}),
                 rows.transport.type, factor);
  }
}

}  // namespace capstan

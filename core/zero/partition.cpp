#include "core/zero/partition.hpp"

#include <algorithm>

namespace capstan {
Partition::Partition(const std::vector<Parameter>& parameters, std::int64_t bucket_elements, int ranks)
    : parameters_(parameters), ranks_(ranks), first_(parameters.size()), bucket_of_(parameters.size()) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  const std::int64_t most = std::min(bucket_elements, kLargestBucket);
  std::int64_t filled = 0;  // elements in the last bucket, without what aligns them
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const std::int64_t numel = parameters[i].numel;
    const bool given = parameters[i].given;
    if (buckets_.empty() || (filled > 0 && filled + numel > most) || given || buckets_.back().given) {
      if (!buckets_.empty()) close(load);
      buckets_.push_back({.begin = order_.size(),
                          .end = order_.size(),
                          .first = numel_,
                          .numel = 0,
                          .rank_first = {},
                          .given = given});
      filled = 0;
    }
    first_[i] = numel_;
    bucket_of_[i] = buckets_.size() - 1;
    order_.push_back(i);
    filled += numel;
    numel_ += aligned(numel);
    buckets_.back().numel += aligned(numel);
    ++buckets_.back().end;
  }
  if (!buckets_.empty()) close(load);
  cut_like_others();
}

/// Spreads the last bucket, unless it is to be cut as another.
void Partition::close(std::vector<std::int64_t>& load) {
  Bucket& bucket = buckets_.back();
  if (!parameters_[order_[bucket.begin]].like) spread(bucket, load);
}

void Partition::cut_like_others() {
  for (Bucket& bucket : buckets_) {
    const std::optional<std::size_t> like = parameters_[order_[bucket.begin]].like;
    if (!like) continue;
    const std::int64_t first = first_[*like], numel = parameters_[*like].numel;
    for (const std::int64_t cut : buckets_[bucket_of_[*like]].rank_first) {
      bucket.rank_first.push_back(bucket.first + std::clamp<std::int64_t>(cut - first, 0, numel));
    }
    bucket.rank_first.back() = bucket.first + bucket.numel;  // with what aligns the next one
  }
}

void Partition::spread(Bucket& bucket, std::vector<std::int64_t>& load) {
  std::vector<std::int64_t> cuts;  // where the bucket may be cut
  for (std::size_t at = bucket.begin; at < bucket.end; ++at) {
    const std::size_t parameter = order_[at];
    cuts.push_back(first_[parameter]);
    if (parameters_[parameter].whole) continue;
    for (std::int64_t cut = kBlock; cut < parameters_[parameter].numel; cut += kBlock) {
      cuts.push_back(first_[parameter] + cut);
    }
  }
  const std::int64_t end = bucket.first + bucket.numel;
  cuts.push_back(end);

  // Each rank takes what brings it to the same load, at the nearest cut; what one cannot take, the next ones can.
  std::int64_t total = bucket.numel;
  for (const std::int64_t one : load) total += one;
  std::int64_t at = bucket.first;
  for (int rank = 0; rank < ranks_; ++rank) {
    auto& mine = load[static_cast<std::size_t>(rank)];
    bucket.rank_first.push_back(at);
    const std::int64_t share = (total * (rank + 1)) / ranks_ - (total * rank) / ranks_;
    const std::int64_t wanted = std::min(end, at + std::max<std::int64_t>(share - mine, 0));
    auto cut = std::lower_bound(cuts.begin(), cuts.end(), wanted);
    if (cut != cuts.begin() && *cut > end) --cut;
    if (cut != cuts.begin() && *(cut - 1) >= at && wanted - *(cut - 1) < *cut - wanted) --cut;
    const std::int64_t next = rank + 1 == ranks_ ? end : std::max(*cut, at);
    mine += next - at;
    at = next;
  }
  bucket.rank_first.push_back(end);
}

std::int64_t Partition::largest_bucket() const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.numel);
  return largest;
}

Range Partition::part(std::size_t parameter, int rank) const {
  const Bucket& bucket = buckets_[bucket_of_[parameter]];
  const std::int64_t first = first_[parameter], end = first + parameters_[parameter].numel;
  const std::int64_t from = std::max(first, bucket.rank_first[static_cast<std::size_t>(rank)]);
  const std::int64_t to = std::min(end, bucket.rank_first[static_cast<std::size_t>(rank) + 1]);
  if (from >= to) return {0, 0};
  return {from - first, to - from};
}

std::int64_t Partition::owned(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets_) elements += bucket.rank_first[index + 1] - bucket.rank_first[index];
  return elements;
}

std::int64_t Partition::reduced(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.given) elements += bucket.rank_first[index + 1] - bucket.rank_first[index];
  }
  return elements;
}

std::int64_t Partition::reduced() const {
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets_) elements += bucket.given ? 0 : bucket.numel;
  return elements;
}

}  // namespace capstan

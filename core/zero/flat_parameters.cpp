#include "core/zero/flat_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <malloc.h>

#include <algorithm>
#include <map>

namespace capstan {

std::vector<bool> alone_in_storage(const std::vector<NamedTensor>& parameters) {
  const auto storage_of = [](const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); };
  std::map<const c10::StorageImpl*, int> users;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.has_storage()) ++users[storage_of(parameter.tensor)];
  }
  std::vector<bool> alone;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    alone.push_back(tensor.has_storage() && tensor.is_contiguous() && tensor.storage_offset() == 0 &&
                    tensor.numel() > 0 && tensor.storage().nbytes() == tensor.nbytes() &&
                    users[storage_of(tensor)] == 1);
  }
  return alone;
}

FlatParameters::FlatParameters(const Partition& partition, const std::vector<at::Tensor>& parameters,
                               const std::vector<bool>& movable, const Gathering& gathering)
    : partition_(partition), gathering_(gathering), moved_(movable) {
  at::NoGradGuard no_grad;
  if (parameters.empty()) return;
  // Untouched memory is none: while parameters move, there is one of them more than there are.
  flat_ = at::empty({partition.numel()}, parameters.front().options().requires_grad(false));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t numel = parameters[i].numel();
    numel_.push_back(numel);
    at::Tensor here = values(i);
    // What aligns the next one travels as well.
    flat_.narrow(0, partition.first(i) + numel, Partition::aligned(numel) - numel).zero_();
    here.copy_(parameters[i].detach().reshape({-1}));
    if (!moved_[i]) continue;
    // Each storage keeps the whole memory alive.
    auto* owner = new at::Storage(flat_.storage());
    c10::DataPtr place(
        here.mutable_data_ptr(), owner, [](void* kept) { delete static_cast<at::Storage*>(kept); }, flat_.device());
    parameters[i].storage().unsafeGetStorageImpl()->set_data_ptr(std::move(place));
  }
  // What they left are holes in the heap, which nothing else may fit: as much memory again as all parameters take.
  malloc_trim(0);
  plan_calls(partition.ranks());
}

at::Tensor FlatParameters::values(std::size_t i) const { return flat_.narrow(0, partition_.first(i), numel_[i]); }

void FlatParameters::plan_calls(int ranks) {
  // Every piece holds at most this many elements of each rank.
  const std::int64_t share = std::max<std::int64_t>(gathering_.slice / ranks, 1);
  std::int64_t elements = 0;  // elements in the last call so far
  for (std::size_t b = 0; b < partition_.buckets().size(); ++b) {
    const Bucket& bucket = partition_.buckets()[b];
    std::int64_t longest = 0;
    for (std::size_t r = 0; r + 1 < bucket.rank_first.size(); ++r) {
      longest = std::max(longest, bucket.rank_first[r + 1] - bucket.rank_first[r]);
    }
    for (std::int64_t at = 0; at < longest; at += share) {
      std::vector<at::Tensor> parts;
      std::int64_t numel = 0;
      for (std::size_t r = 0; r + 1 < bucket.rank_first.size(); ++r) {
        const std::int64_t owned = bucket.rank_first[r + 1] - bucket.rank_first[r];
        const std::int64_t from = std::min(at, owned), count = std::min(share, owned - from);
        parts.push_back(flat_.narrow(0, bucket.rank_first[r] + from, count));
        numel += count;
      }
      if (calls_.empty() || (elements > 0 && elements + numel > gathering_.slice)) {
        calls_.push_back({{}, b, b});
        elements = 0;
      }
      calls_.back().pieces.push_back(std::move(parts));
      calls_.back().last_bucket = b;
      elements += numel;
    }
  }
}

std::pair<std::size_t, std::size_t> FlatParameters::calls_of(std::size_t i) const {
  const std::size_t bucket = partition_.bucket_of(i);
  std::size_t begin = 0;
  while (begin < calls_.size() && calls_[begin].last_bucket < bucket) ++begin;
  std::size_t end = begin;
  while (end < calls_.size() && calls_[end].first_bucket <= bucket) ++end;
  return {begin, end};
}

void FlatParameters::gather(Communicator& communicator, const std::string& name, std::size_t call) const {
  const Communicator::Caller caller = __func__;
  const std::string call_name = name + ", parameters " + std::to_string(call);
  const auto& pieces = calls_[call].pieces;
  if (!gathering_.by_broadcast) return communicator.all_gather(call_name, pieces, caller);
  for (std::size_t root = 0; root < pieces.front().size(); ++root) {
    std::vector<at::Tensor> owned;
    for (const auto& parts : pieces) owned.push_back(parts[root]);
    communicator.broadcast(call_name + " of rank " + std::to_string(root), owned, static_cast<int>(root), caller);
  }
}

void FlatParameters::gather(Communicator& communicator, const std::string& name) const {
  for (std::size_t call = 0; call < calls_.size(); ++call) gather(communicator, name, call);
}

}  // namespace capstan

#include "core/zero/flat_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <malloc.h>

#include <algorithm>

namespace capstan {

bool owns_its_storage(const at::Tensor& parameter) {
  return parameter.is_contiguous() && parameter.storage_offset() == 0 && parameter.numel() > 0 &&
         parameter.storage().nbytes() == parameter.nbytes();
}

FlatParameters::FlatParameters(const Partition& partition, const std::vector<at::Tensor>& parameters,
                               const std::vector<bool>& movable)
    : partition_(partition), moved_(movable) {
  at::NoGradGuard no_grad;
  if (parameters.empty()) return;
  flat_ = at::zeros({partition.numel()}, parameters.front().options().requires_grad(false));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    numel_.push_back(parameters[i].numel());
    at::Tensor here = values(i);
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
}

at::Tensor FlatParameters::values(std::size_t i) const { return flat_.narrow(0, partition_.first(i), numel_[i]); }

void FlatParameters::gather(Communicator& communicator, const std::string& name, std::int64_t slice, bool broadcasts) {
  const int ranks = communicator.size();
  // Every piece holds at most this many elements of each rank.
  const std::int64_t share = std::max<std::int64_t>(slice / ranks, 1);
  std::vector<std::vector<at::Tensor>> pieces;
  std::int64_t elements = 0;
  int call = 0;
  const Communicator::Caller caller = __func__;
  const auto send = [&] {
    if (pieces.empty()) return;
    const std::string call_name = name + ", parameters " + std::to_string(call++);
    if (!broadcasts) {
      communicator.all_gather(call_name, pieces, caller);
    } else {
      for (int root = 0; root < ranks; ++root) {
        std::vector<at::Tensor> owned;
        for (const auto& parts : pieces) owned.push_back(parts[static_cast<std::size_t>(root)]);
        communicator.broadcast(call_name + " of rank " + std::to_string(root), owned, root, caller);
      }
    }
    pieces.clear();
    elements = 0;
  };
  for (const Bucket& bucket : partition_.buckets()) {
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
      if (elements > 0 && elements + numel > slice) send();
      pieces.push_back(std::move(parts));
      elements += numel;
    }
  }
  send();
}

}  // namespace capstan

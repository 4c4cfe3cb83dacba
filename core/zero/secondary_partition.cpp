#include "core/zero/secondary_partition.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace capstan {

at::Tensor SecondaryPartition::slice(const at::Tensor& whole, int place) const {
  const std::int64_t each = (whole.numel() + ranks_ - 1) / ranks_;
  const std::int64_t from = std::min(whole.numel(), each * place);
  return whole.narrow(0, from, std::min(each, whole.numel() - from));
}

void SecondaryPartition::keep(const std::vector<ParameterSource::Request>& wholes) {
  if (ranks_ == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, values] : wholes) {
    at::Tensor kept = slice(values, place_).clone();
    const std::lock_guard lock(mutex_);
    slices_[parameter] = std::move(kept);
  }
}

void SecondaryPartition::gather(Communicator& communicator, const std::string& name,
                                const std::vector<ParameterSource::Request>& wholes) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [parameter, values] : wholes) mine.push_back(slices_.at(parameter));
  }
  const at::Tensor packed = at::cat(mine), nothing = packed.narrow(0, 0, 0);
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<at::Tensor> send(ranks, nothing), receive(ranks, nothing);
  for (int place = 0; place < ranks_; ++place) {
    std::int64_t elements = 0;
    for (const auto& [parameter, values] : wholes) elements += slice(values, place).numel();
    const auto rank = static_cast<std::size_t>(first_rank_ + place);
    send[rank] = packed;
    receive[rank] = at::empty({elements}, packed.options());
  }
  communicator.all_to_all(name, send, receive);
  for (int place = 0; place < ranks_; ++place) {
    const at::Tensor& from = receive[static_cast<std::size_t>(first_rank_ + place)];
    std::int64_t at = 0;
    for (const auto& [parameter, values] : wholes) {
      at::Tensor to = slice(values, place);
      to.copy_(from.narrow(0, at, to.numel()));
      at += to.numel();
    }
  }
}

}  // namespace capstan

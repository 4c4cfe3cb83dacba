#include "boundaries.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "capstan/sdk/config_mistake.hpp"

namespace capstan::activation_checkpointing {
namespace {

std::string shown(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << ' ' << tensor.sizes();
  return out.str();
}

at::TensorOptions place(const at::Tensor& boundary, bool on_host) {
  if (!on_host || boundary.is_cpu()) return boundary.options();
  return boundary.options().device(at::kCPU).pinned_memory(true);
}

}  // namespace

at::Tensor HostBoundaries::Kept::fetch() const { return host.to(device, /*non_blocking=*/true, /*copy=*/true); }

std::uint64_t HostBoundaries::pack(const at::Tensor& boundary, const std::string&) {
  Kept kept{boundary.device(), at::empty(boundary.sizes(), place(boundary, true)), {}};
  kept.host.copy_(boundary, /*non_blocking=*/true);
  kept_.emplace(next_, std::move(kept));
  return next_++;
}

at::Tensor HostBoundaries::unpack(std::uint64_t id) {
  const auto asked = kept_.find(id);
  at::Tensor tensor = asked->second.fetched.defined() ? std::move(asked->second.fetched) : asked->second.fetch();
  if (asked != kept_.begin()) {
    Kept& next = std::prev(asked)->second;
    if (!next.fetched.defined()) next.fetched = next.fetch();
  }
  return tensor;
}

void HostBoundaries::drop(std::uint64_t id) { kept_.erase(id); }

void SlotBoundaries::reserve(const at::Tensor& first, const std::string& layer) {
  std::vector<std::int64_t> sizes = {static_cast<std::int64_t>(free_.size())};
  sizes.insert(sizes.end(), first.sizes().begin(), first.sizes().end());
  slots_ = at::empty(sizes, place(first, on_host_));
  device_ = first.device();
  layer_ = layer;
}

std::uint64_t SlotBoundaries::pack(const at::Tensor& boundary, const std::string& layer) {
  const bool none_in_use = std::all_of(free_.begin(), free_.end(), [](bool free) { return free; });
  // A micro-batch may have another shape than the one before it, a layer than the one before it may not.
  if (!slots_.defined() ||
      (none_in_use && (slots_[0].sizes() != boundary.sizes() || slots_.scalar_type() != boundary.scalar_type()))) {
    reserve(boundary, layer);
  }
  if (slots_[0].sizes() != boundary.sizes() || slots_.scalar_type() != boundary.scalar_type()) {
    throw sdk::ConfigMistake(
        "activation_checkpointing.contiguous_memory_optimization",
        "the slots are of one shape, and layer '" + layer + "' is given " + shown(boundary) + " where layer '" +
            layer_ + "' was given " + shown(slots_[0]) +
            ". Leave one of them out (capstan.recompute.layers), or switch contiguous_memory_optimization off.");
  }
  const auto free = std::find(free_.begin(), free_.end(), true);
  if (free == free_.end()) {
    throw sdk::ConfigMistake("activation_checkpointing.number_checkpoints",
                             std::to_string(free_.size()) + ", and all of them are in use when layer '" + layer +
                                 "' is to be kept. Give the number of layers that are recomputed, divided by "
                                 "capstan.recompute.every.");
  }
  const auto id = static_cast<std::uint64_t>(free - free_.begin());
  slots_[static_cast<std::int64_t>(id)].copy_(boundary, /*non_blocking=*/true);
  *free = false;
  return id;
}

at::Tensor SlotBoundaries::unpack(std::uint64_t id) {
  const at::Tensor slot = slots_[static_cast<std::int64_t>(id)];
  return slot.device() == device_ ? slot : slot.to(device_, /*non_blocking=*/true);
}

}  // namespace capstan::activation_checkpointing

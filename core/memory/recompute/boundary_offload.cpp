#include "core/memory/recompute/boundary_offload.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <iterator>

#include "core/memory/interceptor.hpp"

namespace capstan {
namespace {

/// Boundaries that are being written, whose memory cannot go yet.
constexpr std::size_t kWriting = 2;

}  // namespace

BoundaryOffload::~BoundaryOffload() {
  for (auto& [id, kept] : kept_) {
    if (!kept.memory.defined()) continue;
    try {
      device_.wait(kept.ticket);
    } catch (...) {  // it was told where it mattered, or nobody asks any more
    }
  }
}

std::uint64_t BoundaryOffload::buffer_for(std::uint64_t bytes, const std::string& layer) {
  const auto found = free_.find(bytes);
  if (found == free_.end()) {
    device_.require_room(device_.reserved_bytes() + bytes, "inputs of recomputed layers");
    return device_.add_buffer(bytes, "the input of layer '" + layer + "'");
  }
  const std::uint64_t buffer = found->second;
  free_.erase(found);
  return buffer;
}

OffloadDevice::Ticket BoundaryOffload::start(const Kept& kept, bool write) {
  const OffloadDevice::Range range{kept.buffer, 0, kept.bytes, kept.memory.mutable_data_ptr(), write};
  return device_.start({&range, 1});
}

void BoundaryOffload::finish_write(Kept& kept) {
  if (!kept.memory.defined() || !kept.writes) return;
  device_.wait(kept.ticket);
  kept.memory.reset();
}

std::uint64_t BoundaryOffload::pack(const at::Tensor& boundary, const std::string& layer) {
  const std::scoped_lock lock(mutex_);
  const at::NoGradGuard no_grad;
  const UnseenScope unseen;
  Kept kept;
  kept.like = at::empty_like(boundary, at::TensorOptions().device(at::kMeta));
  kept.layer = layer;
  kept.bytes = boundary.nbytes();
  kept.memory = boundary.detach().cpu().contiguous();
  kept.device = boundary.device();
  kept.buffer = buffer_for(kept.bytes, layer);
  try {
    kept.ticket = start(kept, true);
  } catch (...) {
    free_.emplace(kept.bytes, kept.buffer);
    throw;
  }
  kept.writes = true;
  std::size_t writing = 1;
  for (auto other = kept_.rbegin(); other != kept_.rend(); ++other) {
    if (other->second.memory.defined() && other->second.writes && writing++ >= kWriting) finish_write(other->second);
  }
  kept_.emplace(next_, std::move(kept));
  return next_++;
}

void BoundaryOffload::fetch(Kept& kept) {
  if (kept.memory.defined()) return;  // it is here still, or on its way
  kept.memory = at::empty(kept.like.sizes(), kept.like.options().device(at::kCPU));
  try {
    kept.ticket = start(kept, false);
  } catch (...) {
    kept.memory.reset();
    throw;
  }
  kept.writes = false;
}

at::Tensor BoundaryOffload::unpack(std::uint64_t id) {
  const std::scoped_lock lock(mutex_);
  const at::NoGradGuard no_grad;
  const UnseenScope unseen;
  const auto asked = kept_.find(id);
  fetch(asked->second);
  if (asked != kept_.begin()) fetch(std::prev(asked)->second);
  device_.wait(asked->second.ticket);
  return asked->second.memory.to(asked->second.device);
}

void BoundaryOffload::drop(std::uint64_t id) noexcept {
  const std::scoped_lock lock(mutex_);
  const auto found = kept_.find(id);
  if (found == kept_.end()) return;
  Kept& kept = found->second;
  try {
    if (kept.memory.defined()) device_.wait(kept.ticket);
  } catch (...) {  // unpack() has told it, or nobody asked
  }
  free_.emplace(kept.bytes, kept.buffer);
  kept_.erase(found);
}

}  // namespace capstan

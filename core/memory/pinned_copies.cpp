#include "core/memory/pinned_copies.hpp"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>
#include <string>

#include "core/host_tensor.hpp"
#include "core/log.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kAlignment = 64;  // of what follows in a half: more than any element

at::Tensor pinned_bytes(at::DeviceType device, std::int64_t bytes) {
  auto memory = std::make_shared<at::DataPtr>(at::getHostAllocator(device)->allocate(static_cast<std::size_t>(bytes)));
  return at::from_blob(
      memory->get(), {bytes}, [memory](void*) {}, at::TensorOptions(at::kByte));
}

at::Tensor host_like(const at::Tensor& tensor) { return host_empty(tensor.sizes(), tensor.scalar_type()); }

}  // namespace

bool PinnedCopies::has_halves() {
  if (!halves_.empty() || refused_) return !refused_;
  try {
    std::vector<Half> made(2);
    for (Half& half : made) half.bytes = pinned_bytes(device_.type(), half_bytes_);
    halves_ = std::move(made);
  } catch (const c10::Error& error) {
    refused_ = true;
    log::warning("no pinned memory of " + std::to_string(2 * half_bytes_) + " B for copies from " + device_.str() +
                 ": tensors are copied one by one, which is slower. " + error.what_without_backtrace());
  }
  return !refused_;
}

std::vector<at::Tensor> PinnedCopies::to_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  if (tensors.empty()) return copies;
  const bool pinned = has_halves();
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(host_like(tensor));
    if (pinned) {
      copy(tensor.contiguous().view({-1}), copies.back().view({-1}));
    } else {
      copies.back().copy_(tensor);
    }
  }
  if (!pinned) return copies;
  turn();
  for (Half& half : halves_) empty(half);
  return copies;
}

void PinnedCopies::copy(const at::Tensor& from, const at::Tensor& to) {
  const auto size = static_cast<std::int64_t>(from.element_size());
  for (std::int64_t done = 0; done < from.numel();) {
    if (half_bytes_ - halves_[current_].used < size) turn();
    Half& half = halves_[current_];
    const std::int64_t count = std::min(from.numel() - done, (half_bytes_ - half.used) / size);
    const at::Tensor room = half.bytes.narrow(0, half.used, count * size).view(from.scalar_type());
    at::Tensor(room).copy_(from.narrow(0, done, count), /*non_blocking=*/true);
    half.arrivals.push_back({room, to.narrow(0, done, count)});
    half.used = std::min(half_bytes_, (half.used + count * size + kAlignment - 1) / kAlignment * kAlignment);
    done += count;
  }
}

void PinnedCopies::turn() {
  halves_[current_].filled.emplace(device_.type());
  halves_[current_].filled->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  current_ = 1 - current_;
  empty(halves_[current_]);
}

void PinnedCopies::empty(Half& half) {
  if (!half.filled) return;
  half.filled->synchronize();
  half.filled.reset();
  for (const Arrival& arrival : half.arrivals) at::Tensor(arrival.to).copy_(arrival.from);
  half.arrivals.clear();
  half.used = 0;
}

}  // namespace capstan

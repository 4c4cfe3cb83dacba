#include "core/parameters/stored_parts.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/log.hpp"

namespace capstan {
namespace {

StoredExtent part_of(const StoredExtent& extent, std::int64_t from, std::int64_t numel, std::uint64_t element_size) {
  return {extent.buffer, extent.offset + static_cast<std::uint64_t>(from) * element_size, nullptr, extent.first + from,
          numel};
}

}  // namespace

OffloadDevice::Ticket StoredParts::start(std::size_t parameter, const at::Tensor& values, bool write) {
  std::vector<OffloadDevice::Range> ranges;
  const std::uint64_t size = values.element_size();
  auto* const memory = static_cast<std::byte*>(values.data_ptr());
  for (const StoredExtent& extent : extents_[parameter]) {
    if (extent.numel == 0) continue;
    ranges.push_back({extent.buffer, extent.offset, static_cast<std::uint64_t>(extent.numel) * size,
                      memory + static_cast<std::uint64_t>(extent.first) * size, write});
  }
  return ranges.empty() ? 0 : store_.start(ranges);
}

PartStore::Ticket StoredParts::read(std::size_t parameter, const at::Tensor& to) {
  return start(parameter, to, /*write=*/false);
}

void StoredParts::write(std::size_t parameter, const at::Tensor& part) {
  store_.wait(start(parameter, part.contiguous(), /*write=*/true));
}

StoredGradients::StoredGradients(OffloadDevice& store, at::ScalarType dtype,
                                 std::vector<std::vector<StoredExtent>> extents)
    : store_(store), dtype_(dtype), extents_(std::move(extents)) {
  for (Staging& staging : staging_) {
    staging.pages = HugePages(kGradientBufferBytes);
    store_.lend(staging.pages.data(), staging.pages.size());
  }
}

StoredGradients::~StoredGradients() {
  for (Staging& staging : staging_) {
    try {
      if (staging.writing) store_.wait(*staging.writing);
    } catch (const std::exception& error) {
      log::warning(error.what());
    }
    if (!store_.take_back(staging.pages.data())) staging.pages.abandon();
  }
}

StoredGradients::Staging& StoredGradients::next_staging() {
  Staging& staging = staging_[turn_++ % staging_.size()];
  if (const auto writing = std::exchange(staging.writing, std::nullopt)) store_.wait(*writing);
  return staging;
}

void StoredGradients::keep_here(const StoredExtent& extent, at::Tensor values, bool add) {
  at::Tensor kept = at::from_blob(extent.memory, {extent.numel}, dtype_);
  if (add) values.copy_(kept.add_(values));
  if (!add) kept.copy_(values);
}

void StoredGradients::keep_through(const StoredExtent& extent, at::Tensor values, bool add) {
  Staging& staging = next_staging();
  at::Tensor kept = at::from_blob(staging.pages.data(), {extent.numel}, dtype_);
  OffloadDevice::Range range{extent.buffer, extent.offset, kept.nbytes(), staging.pages.data(), false};
  if (add) {
    store_.wait(store_.start({&range, 1}));
    values.copy_(kept.add_(values));
  } else {
    kept.copy_(values);
  }
  range.write = true;
  staging.writing = store_.start({&range, 1});
}

void StoredGradients::keep(std::size_t parameter, at::Tensor values, bool add) {
  const at::NoGradGuard no_grad;
  const auto at_once = static_cast<std::int64_t>(kGradientBufferBytes / c10::elementSize(dtype_));
  for (const StoredExtent& extent : extents_[parameter]) {
    if (extent.memory != nullptr) keep_here(extent, values.narrow(0, extent.first, extent.numel), add);
    for (std::int64_t from = 0; extent.memory == nullptr && from < extent.numel; from += at_once) {
      const std::int64_t numel = std::min(at_once, extent.numel - from);
      keep_through(part_of(extent, from, numel, c10::elementSize(dtype_)), values.narrow(0, extent.first + from, numel),
                   add);
    }
  }
}

void StoredGradients::read(std::size_t parameter, at::Tensor to) {
  std::vector<OffloadDevice::Range> ranges;
  for (const StoredExtent& extent : extents_[parameter]) {
    at::Tensor values = to.narrow(0, extent.first, extent.numel);
    if (extent.memory != nullptr) {
      values.copy_(at::from_blob(extent.memory, {extent.numel}, dtype_));
    } else if (extent.numel > 0) {
      ranges.push_back({extent.buffer, extent.offset, values.nbytes(), values.data_ptr(), false});
    }
  }
  if (!ranges.empty()) store_.wait(store_.start(ranges));
}

void StoredGradients::settle() {
  std::exception_ptr failure;
  for (Staging& staging : staging_) {
    try {
      if (const auto writing = std::exchange(staging.writing, std::nullopt)) store_.wait(*writing);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace capstan

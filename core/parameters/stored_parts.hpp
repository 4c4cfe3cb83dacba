#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/memory/huge_pages.hpp"
#include "core/memory/offload_device.hpp"
#include "core/zero/gradient_store.hpp"
#include "core/zero/offload_plan.hpp"
#include "core/zero/part_store.hpp"

namespace capstan {

/// Where a run of elements of a part is: in a buffer of a store, or in memory.
struct StoredExtent {
  std::uint64_t buffer = 0, offset = 0;  // bytes
  std::byte* memory = nullptr;           // not null: here instead
  std::int64_t first = 0, numel = 0;     // elements
};

/// Parts of parameters on a store. `extents[i]`: of parameter i, in order.
class StoredParts final : public PartStore {
 public:
  /// The store must outlive this.
  StoredParts(OffloadDevice& store, std::vector<std::vector<StoredExtent>> extents)
      : store_(store), extents_(std::move(extents)) {}

  Ticket read(std::size_t parameter, const at::Tensor& to) override;
  void wait(Ticket ticket) override { store_.wait(ticket); }
  void write(std::size_t parameter, const at::Tensor& part) override;

 private:
  OffloadDevice::Ticket start(std::size_t parameter, const at::Tensor& values, bool write);

  OffloadDevice& store_;
  std::vector<std::vector<StoredExtent>> extents_;
};

/// Gradients of these parts on a store, through a little staging memory.
class StoredGradients final : public GradientStore {
 public:
  /// The store must outlive this.
  StoredGradients(OffloadDevice& store, at::ScalarType dtype, std::vector<std::vector<StoredExtent>> extents);
  ~StoredGradients() override;

  void keep(std::size_t parameter, at::Tensor values, bool add) override;
  void read(std::size_t parameter, at::Tensor to) override;
  /// Waits until all that keep() was given is on the store. Throws RuntimeFault, once for all that has failed.
  void settle();

 private:
  struct Staging {
    HugePages pages;
    std::optional<OffloadDevice::Ticket> writing;
  };
  void keep_here(const StoredExtent& extent, at::Tensor values, bool add);
  void keep_through(const StoredExtent& extent, at::Tensor values, bool add);
  Staging& next_staging();

  OffloadDevice& store_;
  at::ScalarType dtype_;
  std::vector<std::vector<StoredExtent>> extents_;
  std::array<Staging, kGradientBuffers> staging_;
  std::size_t turn_ = 0;
};

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/memory/accelerator.hpp"

namespace capstan {

/// The memory tier that the tensors of sub-groups stay on between updates: the device's memory, or one behind it. The
/// parameter store decides what is updated when, and knows nothing of where the tensors stay. [engine]
class SubGroupTier {
 public:
  virtual ~SubGroupTier() = default;

  /// Plans for sub-groups whose tensors take `bytes[i]`, each tensor rounded up to kAlignment. Call it once, before the
  /// other functions.
  virtual void reserve(const std::vector<std::uint64_t>& bytes) = 0;
  /// Opens sub-group `index` for the allocation and the first values of its tensors; release(index, true) ends it.
  virtual void open(std::size_t index) = 0;
  /// Uninitialised memory for one tensor of the open sub-group, one dimension; `on_host`: wherever the others are.
  virtual at::Tensor allocate(std::int64_t elements, at::ScalarType dtype, bool on_host) = 0;
  /// Makes the tensors of a sub-group resident.
  virtual void acquire(std::size_t index) = 0;
  /// Ends their residence; `changed`: their values are kept, else the earlier ones.
  virtual void release(std::size_t index, bool changed) = 0;
  /// Whether a released tensor still shows its values: a caller that reads it later need not copy it.
  virtual bool readable_after_release() const = 0;

  /// Tensors start on cache lines, so that vector loads of one never touch its neighbour's.
  static constexpr std::uint64_t kAlignment = 64;
  static std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
};

/// The device's own memory: every tensor is resident for good.
class ResidentTier final : public SubGroupTier {
 public:
  explicit ResidentTier(const Accelerator& accelerator) : accelerator_(accelerator) {}

  void reserve(const std::vector<std::uint64_t>&) override {}
  void open(std::size_t) override {}
  at::Tensor allocate(std::int64_t elements, at::ScalarType dtype, bool on_host) override;
  void acquire(std::size_t) override {}
  void release(std::size_t, bool) override {}
  bool readable_after_release() const override { return true; }

 private:
  const Accelerator& accelerator_;
};

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "capstan/plugin.h"
#include "core/parameters/sub_group_tier.hpp"
#include "core/registry/registry.hpp"

namespace capstan {

/// A component of kind "offload" as a tier: one buffer a sub-group, and in memory only as much as the largest sub-group
/// needs. The tensors of all sub-groups alias that staging memory.
class StateOffload final : public SubGroupTier {
 public:
  explicit StateOffload(Component component);
  StateOffload(const StateOffload&) = delete;
  ~StateOffload() override;

  void reserve(const std::vector<std::uint64_t>& bytes) override;
  void open(std::size_t index) override;
  at::Tensor allocate(std::int64_t elements, at::ScalarType dtype, bool on_host) override;
  /// Reads the sub-group into the staging memory, after waiting for what is still being written from there.
  void acquire(std::size_t index) override;
  /// Starts writing the staging memory as this sub-group, where it changed.
  void release(std::size_t index, bool changed) override;
  bool readable_after_release() const override { return false; }

 private:
  /// Waits for what is still being written, so that the staging memory may be filled anew.
  void wait();
  const capstan_offload* vtable() const { return component_.vtable<capstan_offload>(); }

  Component component_;
  std::string where_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::byte> staging_;
  std::uint64_t allocated_ = 0;  // bytes of the open sub-group
  bool writing_ = false;
  std::uint64_t ticket_ = 0;
};

}  // namespace capstan

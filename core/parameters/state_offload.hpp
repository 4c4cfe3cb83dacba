#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "capstan/plugin.h"
#include "core/registry/registry.hpp"

namespace capstan {

/// Keeps optimizer states in a component of kind "offload": one buffer a sub-group, and in memory only as much as the
/// largest sub-group needs. [engine]
class StateOffload {
 public:
  explicit StateOffload(Component component);
  StateOffload(const StateOffload&) = delete;
  ~StateOffload();

  /// Plans `bytes[i]` for sub-group i. Call once, before the others.
  void reserve(const std::vector<std::uint64_t>& bytes);
  /// Where a sub-group's states stand while it is acquired: `reserve`d memory shared by all of them.
  std::byte* staging() { return staging_.data(); }
  /// Reads sub-group `index` into the staging memory; waits for what is still being written from it.
  void read(std::size_t index);
  /// Starts writing the staging memory as sub-group `index`.
  void write(std::size_t index);
  /// Waits for what is still being written, so that the staging memory may be filled anew.
  void wait();

 private:
  const capstan_offload* vtable() const { return component_.vtable<capstan_offload>(); }

  Component component_;
  std::string where_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::byte> staging_;
  bool writing_ = false;
  std::uint64_t ticket_ = 0;
};

}  // namespace capstan

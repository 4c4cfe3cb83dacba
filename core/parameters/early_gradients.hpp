#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/accelerator.hpp"
#include "core/memory/pinned_copies.hpp"
#include "core/zero/work_queue.hpp"

namespace capstan {

/// Copies of a device's gradients in host memory, which a thread makes while backward goes on, on a stream of its own
/// (ZeRO-Offload; Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", 2021, section 4).
class EarlyGradients {
 public:
  /// Of so many parameters. `accelerator` must outlive this.
  EarlyGradients(const Accelerator& accelerator, std::size_t parameters);

  /// The gradient of parameter i, contiguous, is complete: copies the values that it has once the calling thread's
  /// stream has come to its present end. One thread at a time, whichever.
  void start(std::size_t i, const at::Tensor& gradient);
  /// Backward has ended: from here on whoever changes a gradient changes it for the update.
  void close();
  /// The copy of parameter i's gradient, one dimension; undefined where none was started, or where the gradient is
  /// another one, or has changed since close(). Waits for all copies. Throws what a copy threw.
  at::Tensor take(std::size_t i, const at::Tensor& gradient);
  /// Forgets all copies.
  void drop() noexcept;

 private:
  struct Copy {
    at::Tensor gradient, here;  // flat; undefined: not started
    std::uint32_t version = 0;
  };
  std::vector<Copy> copies_;
  PinnedCopies pinned_;  // the thread's
  WorkQueue queue_;      // last: its thread uses the members above
};

}  // namespace capstan

#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

namespace capstan {

/// Memory for values that come and go. Blocks of 64 KiB and more are whole pages from the kernel, a few of which are
/// kept for the next block of the same size: in the heap, large blocks of changing sizes would leave holes between the
/// blocks that last, and the holes cost as much as giving the memory back had saved. [any thread]
class PagePool {
 public:
  /// Keeps at most `kept_bytes` of unused memory.
  explicit PagePool(std::size_t kept_bytes);

  /// The memory is not initialised, and may outlive the pool. Throws std::bad_alloc.
  at::DataPtr allocate(std::size_t bytes);

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace capstan

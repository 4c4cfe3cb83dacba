#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

namespace capstan {

/// Memory of what comes and goes: whole pages from the kernel, of which a little is kept for the next of the same size;
/// from 64 KiB on.
/// In the heap large blocks of changing sizes leave holes between those that last, which cost as much as what was
/// saved. [any thread]
class PagePool {
 public:
  /// Keeps at most `kept_bytes` that nobody uses.
  explicit PagePool(std::size_t kept_bytes);

  /// Not initialised. May outlive the pool. Throws std::bad_alloc.
  at::DataPtr allocate(std::size_t bytes);

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace capstan

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace capstan::emulated {

/// Device memory is mapped twice: at the addresses that tensors have, where no access is allowed, and at others, by
/// which the device itself reads and writes. A block is born as NaN, and ends at a page that is never mapped.
///
/// Allocates on a device for the calling thread's current stream; null where the device is full.
void* allocate(int device, std::size_t bytes);
/// Reports a race where another stream may still use the block.
void release(void* block);
/// The address by which the device itself reads and writes; null where `pointer` is no device memory.
void* host_view(const void* pointer);
/// The device of a pointer; -1: none.
int device_of(const void* pointer);
/// The first address of the block that `pointer` lies in; null: it lies in none.
const void* block_of(const void* pointer);
/// "block of 64 B, byte 16", or that there is no block.
std::string describe(const void* pointer);

struct MemoryBytes {
  std::uint64_t in_use = 0, peak = 0, total = 0;
};
MemoryBytes memory_of(int device);

/// How far threads may touch the addresses that a block's tensors have; kClosed where no raw kernel runs.
enum class Protection { kClosed, kReadable, kWritable };
/// Nothing happens where `block` was released.
void protect_block(const void* block, Protection protection);

/// Pinned host memory, in pages of its own; null beyond what CAPSTAN_EMULATED_PINNED_MB lets one allocation have.
void* allocate_pinned(std::size_t bytes);
void release_pinned(void* memory);
bool is_pinned(const void* pointer);
struct Pages {
  char* begin = nullptr;  // null: not pinned
  std::size_t bytes = 0;
};
Pages pinned_pages(const void* pointer);

}  // namespace capstan::emulated

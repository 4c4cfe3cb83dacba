#include "device/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "device/device.hpp"
#include "device/order.hpp"

namespace capstan::emulated {
namespace {

constexpr std::size_t kSpace = std::size_t{32} << 30;  // addresses of a device
constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 64;
constexpr int kPoison = 0xFF;  // NaN in every floating-point type

struct Block {
  std::size_t begin = 0;  // of its pages, from the arena's beginning
  std::size_t bytes = 0, pages = 0;
  int stream = 0;
  bool open = false;  // a raw kernel has touched it
};

struct Arena {
  int file = -1;
  char *device = nullptr, *host = nullptr;
  std::size_t end = 0;
  std::map<std::size_t, std::vector<std::size_t>> unused;  // by the number of pages
  std::map<const char*, Block> blocks;
  MemoryBytes bytes;
};

/// Bytes that a variable gives in MiB, or else `otherwise`.
std::uint64_t bytes_of(const char* variable, std::uint64_t otherwise) {
  const char* asked = std::getenv(variable);
  const std::uint64_t megabytes = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 0;
  return megabytes > 0 ? megabytes << 20 : otherwise;
}

void map_arena(Arena& arena) {
  arena.file = memfd_create("emulated device", MFD_CLOEXEC);
  const int shared = MAP_SHARED | MAP_NORESERVE;
  if (arena.file < 0 || ftruncate(arena.file, static_cast<off_t>(kSpace)) != 0) std::abort();
  void* device = mmap(nullptr, kSpace, PROT_NONE, shared, arena.file, 0);
  void* host = mmap(nullptr, kSpace, PROT_READ | PROT_WRITE, shared, arena.file, 0);
  if (device == MAP_FAILED || host == MAP_FAILED) std::abort();
  arena.device = static_cast<char*>(device);
  arena.host = static_cast<char*>(host);
  arena.bytes.total = bytes_of("CAPSTAN_EMULATED_MEMORY_MB", std::uint64_t{16} << 30);
}

std::vector<Arena>& arenas() {
  static auto* all = [] {
    auto* made = new std::vector<Arena>(kDevices);
    for (Arena& arena : *made) map_arena(arena);
    return made;
  }();
  return *all;
}

Arena* arena_of(const void* pointer) {
  const auto* at = static_cast<const char*>(pointer);
  for (Arena& arena : arenas()) {
    if (at >= arena.device && at < arena.device + kSpace) return &arena;
  }
  return nullptr;
}

const char* start_in(const Arena& arena, const void* pointer) {
  const auto* at = static_cast<const char*>(pointer);
  auto found = arena.blocks.upper_bound(at);
  if (found == arena.blocks.begin()) return nullptr;
  --found;
  return at < found->first + std::max<std::size_t>(found->second.bytes, 1) ? found->first : nullptr;
}

/// Pages for a block, of which the last one is never written.
std::size_t take_pages(Arena& arena, std::size_t pages) {
  auto& list = arena.unused[pages];
  if (!list.empty()) {
    const std::size_t at = list.back();
    list.pop_back();
    return at;
  }
  const std::size_t at = arena.end;
  arena.end += pages * kPage;
  return at;
}

void protect(const Arena& arena, Block& block, Protection protection) {
  block.open = protection != Protection::kClosed;
  const int allowed = protection == Protection::kClosed     ? PROT_NONE
                      : protection == Protection::kReadable ? PROT_READ
                                                            : PROT_READ | PROT_WRITE;
  mprotect(arena.device + block.begin, (block.pages - 1) * kPage, allowed);
}

struct Pinned {
  std::size_t bytes;
};
std::map<const char*, Pinned>& pinned() {
  static auto* all = new std::map<const char*, Pinned>;
  return *all;
}

}  // namespace

void* allocate(int device, std::size_t bytes) {
  const std::lock_guard lock(device_mutex());
  Arena& arena = arenas().at(static_cast<std::size_t>(device));
  const std::size_t pages = (bytes + kPage - 1) / kPage + 1;
  if (arena.bytes.in_use + bytes > arena.bytes.total || arena.end + pages * kPage > kSpace) return nullptr;
  const std::size_t begin = take_pages(arena, pages);
  // At the end of its pages, so that whatever runs over it meets the page that is not mapped.
  const std::size_t slack = ((pages - 1) * kPage - bytes) / kAlignment * kAlignment;
  char* const block = arena.device + begin + slack;
  arena.blocks[block] = {begin, bytes, pages, current_stream(device)};
  arena.bytes.in_use += bytes;
  arena.bytes.peak = std::max(arena.bytes.peak, arena.bytes.in_use);
  std::memset(arena.host + begin + slack, kPoison, bytes);
  return block;
}

void release(void* pointer) {
  if (pointer == nullptr) return;
  const std::lock_guard lock(device_mutex());
  Arena* arena = arena_of(pointer);
  if (arena == nullptr) return;
  const auto found = arena->blocks.find(static_cast<char*>(pointer));
  if (found == arena->blocks.end()) return;
  Block block = found->second;
  forget_block(pointer, static_cast<int>(arena - arenas().data()), block.stream, block.bytes);
  if (block.open) protect(*arena, block, Protection::kClosed);
  arena->bytes.in_use -= block.bytes;
  fallocate(arena->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block.begin),
            static_cast<off_t>(block.pages * kPage));
  arena->unused[block.pages].push_back(block.begin);
  arena->blocks.erase(found);
}

void* host_view(const void* pointer) {
  const Arena* arena = arena_of(pointer);
  return arena == nullptr ? nullptr : arena->host + (static_cast<const char*>(pointer) - arena->device);
}

int device_of(const void* pointer) {
  const Arena* arena = arena_of(pointer);
  return arena == nullptr ? -1 : static_cast<int>(arena - arenas().data());
}

const void* block_of(const void* pointer) {
  const std::lock_guard lock(device_mutex());
  const Arena* arena = arena_of(pointer);
  return arena == nullptr ? nullptr : start_in(*arena, pointer);
}

std::string describe(const void* pointer) {
  const Arena* arena = arena_of(pointer);
  const char* start = arena == nullptr ? nullptr : start_in(*arena, pointer);
  if (start == nullptr) return "no block: it was freed, or an access ran over its end";
  return "block of " + std::to_string(arena->blocks.at(start).bytes) + " B, byte " +
         std::to_string(static_cast<const char*>(pointer) - start);
}

MemoryBytes memory_of(int device) {
  const std::lock_guard lock(device_mutex());
  return arenas().at(static_cast<std::size_t>(device)).bytes;
}

void protect_block(const void* block, Protection protection) {
  const std::lock_guard lock(device_mutex());
  Arena* arena = arena_of(block);
  if (arena == nullptr) return;
  const auto found = arena->blocks.find(static_cast<const char*>(block));
  if (found != arena->blocks.end()) protect(*arena, found->second, protection);
}

void* allocate_pinned(std::size_t bytes) {
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  if (size > bytes_of("CAPSTAN_EMULATED_PINNED_MB", UINT64_MAX)) return nullptr;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  const std::lock_guard lock(device_mutex());
  pinned()[static_cast<char*>(memory)] = {size};
  return memory;
}

void release_pinned(void* memory) {
  const std::lock_guard lock(device_mutex());
  const auto found = pinned().find(static_cast<char*>(memory));
  if (found == pinned().end()) return;
  forget_pinned(found->first);
  munmap(memory, found->second.bytes);
  pinned().erase(found);
}

Pages pinned_pages(const void* pointer) {
  const std::lock_guard lock(device_mutex());
  const auto* at = static_cast<const char*>(pointer);
  auto found = pinned().upper_bound(at);
  if (found == pinned().begin()) return {};
  --found;
  if (at >= found->first + found->second.bytes) return {};
  return {const_cast<char*>(found->first), found->second.bytes};
}

bool is_pinned(const void* pointer) { return pinned_pages(pointer).begin != nullptr; }

}  // namespace capstan::emulated

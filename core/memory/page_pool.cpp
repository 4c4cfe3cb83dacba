#include "core/memory/page_pool.hpp"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace capstan {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSmall = 64 << 10;  // bytes; less than this fits the heap's holes

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

struct PagePool::Shelf {
  explicit Shelf(std::size_t limit) : room(limit) {}
  ~Shelf() {
    for (const auto& [bytes, pages] : free) munmap(pages, bytes);
  }
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto found = free.find(bytes);
    if (found == free.end()) return nullptr;
    void* pages = found->second;
    free.erase(found);
    room += bytes;
    return pages;
  }
  void put(void* pages, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    if (bytes > room) {
      munmap(pages, bytes);
      return;
    }
    free.emplace(bytes, pages);
    room -= bytes;
  }
  std::mutex mutex;
  std::multimap<std::size_t, void*> free;  // by size
  std::size_t room;
};

PagePool::PagePool(std::size_t kept_bytes) : shelf_(std::make_shared<Shelf>(kept_bytes)) {}

at::DataPtr PagePool::allocate(std::size_t bytes) {
  struct Block {
    std::shared_ptr<Shelf> shelf;
    void* pages;
    std::size_t bytes;
  };
  if (bytes < kSmall) return c10::GetAllocator(c10::kCPU)->allocate(bytes);
  const std::size_t size = whole_pages(bytes);
  void* pages = shelf_->take(size);
  if (pages == nullptr) {
    pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
  }
  return {pages, new Block{shelf_, pages, size},
          [](void* context) {
            const std::unique_ptr<Block> block(static_cast<Block*>(context));
            block->shelf->put(block->pages, block->bytes);
          },
          at::Device(at::kCPU)};
}

}  // namespace capstan

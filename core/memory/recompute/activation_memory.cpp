#include "core/memory/recompute/activation_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

namespace capstan {
namespace {

constexpr std::size_t kPage = 4096, kSmall = 64 << 10, kSlack = 32 << 20;

thread_local bool in_scope = false;

/// Pages for tensors. [any thread]
class Pages {
 public:
  void* take(std::size_t bytes) {
    const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
    const std::lock_guard lock(mutex_);
    void* pages = reuse(size);
    if (pages == nullptr) {
      make_room(size);
      pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) return nullptr;
    }
    used_.emplace(pages, size);
    in_use_ += size;
    most_ = std::max(most_, in_use_);
    return pages;
  }

  /// False where the memory is none of these.
  bool put(void* pages) {
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(pages);
    if (found == used_.end()) return false;
    const std::size_t size = found->second;
    used_.erase(found);
    in_use_ -= size;
    free_ += size;
    oldest_.push_back({pages, size});
    by_size_.emplace(size, std::prev(oldest_.end()));
    return true;
  }

 private:
  struct Free {
    void* pages;
    std::size_t size;
  };
  using Place = std::list<Free>::iterator;

  void* reuse(std::size_t size) {
    const auto found = by_size_.find(size);
    if (found == by_size_.end()) return nullptr;
    void* pages = found->second->pages;
    oldest_.erase(found->second);
    by_size_.erase(found);
    free_ -= size;
    return pages;
  }

  void make_room(std::size_t size) {
    while (!oldest_.empty() && in_use_ + free_ + size > std::max(most_, in_use_ + size) + kSlack) {
      const Free free = oldest_.front();
      const auto [begin, end] = by_size_.equal_range(free.size);
      by_size_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == oldest_.begin(); }));
      oldest_.pop_front();
      free_ -= free.size;
      munmap(free.pages, free.size);
    }
  }

  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> used_;
  std::list<Free> oldest_;                     // in the order in which they were freed
  std::multimap<std::size_t, Place> by_size_;  // those of `oldest_`
  std::size_t in_use_ = 0, free_ = 0, most_ = 0;
};

/// LibTorch's allocator for the CPU, but for what a scope covers. It is never destroyed: tensors may outlive main().
class ScopedAllocator final : public c10::Allocator {
 public:
  explicit ScopedAllocator(c10::Allocator& others) : others_(others) {}

  at::DataPtr allocate(std::size_t bytes) override {
    if (!in_scope || bytes < kSmall) return others_.allocate(bytes);
    void* memory = pages_.take(bytes);
    if (memory == nullptr) return others_.allocate(bytes);  // which says that there is no memory
    return {memory, memory, &ScopedAllocator::release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &ScopedAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { others_.copy_data(to, from, bytes); }

  static ScopedAllocator& instance() {
    static auto* allocator = [] {
      auto* made = new ScopedAllocator(*c10::GetCPUAllocator());
      c10::SetCPUAllocator(made);
      return made;
    }();
    return *allocator;
  }

 private:
  static void release(void* memory) {
    ScopedAllocator& allocator = instance();
    if (!allocator.pages_.put(memory)) allocator.others_.raw_deleter()(memory);
  }

  c10::Allocator& others_;
  Pages pages_;
};

}  // namespace

ActivationMemoryScope::ActivationMemoryScope() : outer_(std::exchange(in_scope, true)) { ScopedAllocator::instance(); }
ActivationMemoryScope::~ActivationMemoryScope() { in_scope = outer_; }

}  // namespace capstan

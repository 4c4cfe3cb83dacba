#include "core/memory/huge_pages.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace capstan {

HugePages::HugePages(std::size_t bytes) : size_((bytes + kPage - 1) / kPage * kPage) {
  if (size_ == 0) return;
  // One page more, of which what lies before and behind an aligned block goes back.
  const std::size_t mapped = size_ + kPage;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(memory);
  const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(begin) % kPage) % kPage;
  data_ = begin + before;
  if (before > 0) munmap(begin, before);
  munmap(data_ + size_, kPage - before);
  madvise(data_, size_, MADV_HUGEPAGE);
  madvise(data_, size_, MADV_DONTFORK);
}

HugePages::~HugePages() {
  if (data_ != nullptr) munmap(data_, size_);
}

HugePages::HugePages(HugePages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HugePages& HugePages::operator=(HugePages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace capstan

#pragma once

#include <cstddef>
#include <cstdint>

namespace capstan {

/// Memory for transfers: whole huge pages where the kernel has them, which cost storage engines a fraction of what
/// small pages do, zeros at first. A child process does not have the memory, so that a fork copies nothing of it.
class HugePages {
 public:
  static constexpr std::size_t kPage = 2 << 20;

  HugePages() = default;
  /// Throws std::bad_alloc.
  explicit HugePages(std::size_t bytes);
  ~HugePages();
  HugePages(HugePages&& other) noexcept;
  HugePages& operator=(HugePages&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Leaves the memory mapped for good, where something may still write to it.
  void abandon() { data_ = nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;  // bytes, a multiple of kPage
};

}  // namespace capstan

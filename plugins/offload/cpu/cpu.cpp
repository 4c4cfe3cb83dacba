#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>

#include "capstan/sdk/offload.hpp"

namespace capstan::offload {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;

/// Anonymous memory of its own, in huge pages where the kernel has them: it counts as the process's when it is written.
class Pages {
 public:
  // A huge page more, so that the first one can begin where huge pages do.
  explicit Pages(std::uint64_t bytes)
      : bytes_(bytes),
        mapping_(mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (mapping_ == MAP_FAILED) throw sdk::Error(std::strerror(errno));
    const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(mapping_) % kHugePage;
    first_ = static_cast<std::byte*>(mapping_) + (beyond == 0 ? 0 : kHugePage - beyond);
    if (bytes >= kHugePage) madvise(first_, bytes, MADV_HUGEPAGE);
  }
  ~Pages() { munmap(mapping_, bytes_ + kHugePage); }
  Pages(const Pages&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  std::byte* at(std::uint64_t offset) const { return first_ + offset; }

 private:
  std::uint64_t bytes_;
  void* mapping_;
  std::byte* first_;
};

/// Host memory: a transfer is a copy, and done when start returns.
class Cpu {
 public:
  Cpu(sdk::Host, const sdk::Params&) {}

  void register_buffer(std::uint64_t id, std::uint64_t bytes) {
    if (buffers_.contains(id)) throw sdk::Error("buffer " + std::to_string(id) + " is registered already.");
    try {
      if (bytes > INT64_MAX / 2) throw sdk::Error(std::strerror(ENOMEM));
      buffers_.emplace(id, bytes);
    } catch (const sdk::Error& error) {
      throw sdk::Error("no memory for buffer " + std::to_string(id) + ": it needs " + std::to_string(bytes) +
                       " bytes beside the " + std::to_string(held_) + " that are held: " + error.what() +
                       ". Offload to a disk: type nvme.");
    }
    held_ += bytes;
  }

  void release_buffer(std::uint64_t id) {
    held_ -= buffer(id).bytes();
    buffers_.erase(id);
  }

  std::uint64_t start(std::span<const sdk::Range> ranges) {
    for (const sdk::Range& range : ranges) {
      const std::uint64_t bytes = buffer(range.buffer_id).bytes();
      if (range.offset > bytes || range.bytes > bytes - range.offset) {
        throw sdk::Error("range of " + std::to_string(range.bytes) + " bytes at offset " +
                         std::to_string(range.offset) + " is outside buffer " + std::to_string(range.buffer_id) +
                         ", which has " + std::to_string(bytes) + ".");
      }
    }
    for (const sdk::Range& range : ranges) copy(range);
    return ++tickets_;
  }

  bool poll(std::uint64_t) { return true; }

  std::string stats() const {
    return "{\"about\": \"host memory\", \"bytes_held\": " + std::to_string(held_) +
           ", \"bytes_read\": " + std::to_string(read_) + ", \"bytes_written\": " + std::to_string(written_) + "}";
  }

 private:
  const Pages& buffer(std::uint64_t id) const {
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) throw sdk::Error("buffer " + std::to_string(id) + " is not registered.");
    return found->second;
  }

  void copy(const sdk::Range& range) {
    if (range.bytes == 0) return;
    std::byte* kept = buffer(range.buffer_id).at(range.offset);
    std::memcpy(range.write != 0 ? kept : range.memory, range.write != 0 ? range.memory : kept, range.bytes);
    (range.write != 0 ? written_ : read_) += range.bytes;
  }

  std::map<std::uint64_t, Pages> buffers_;
  std::uint64_t tickets_ = 0, held_ = 0, read_ = 0, written_ = 0;
};

}  // namespace
}  // namespace capstan::offload

CAPSTAN_PLUGIN(&capstan::sdk::offload<capstan::offload::Cpu, "cpu">)

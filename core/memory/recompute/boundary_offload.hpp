#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/memory/offload_device.hpp"
#include "core/memory/recompute/recomputation.hpp"

namespace capstan {

/// Boundaries of regions on a store of kind "offload" (the idea of SSDTrain, Wu et al. 2024, arXiv 2408.10013). A
/// tensor's memory goes once it is written; while it is, up to two wait in memory. When one comes back, the one that
/// was packed before it is fetched as well, which backward asks for next. [any thread, one call at a time]
class BoundaryOffload final : public BoundaryStore {
 public:
  /// `device` must outlive this object.
  explicit BoundaryOffload(OffloadDevice& device) : device_(device) {}
  ~BoundaryOffload() override;

  std::uint64_t pack(const at::Tensor& boundary, const std::string& layer) override;
  at::Tensor unpack(std::uint64_t id) override;
  void drop(std::uint64_t id) noexcept override;

 private:
  struct Kept {
    at::Tensor like;  // its shape, without elements
    at::Device device = at::kCPU;
    at::Tensor memory;  // on the host, while a transfer is under way; undefined: on the store
    std::uint64_t buffer = 0, bytes = 0;
    OffloadDevice::Ticket ticket = 0;
    bool writes = false;  // what is under way
    std::string layer;
  };
  std::uint64_t buffer_for(std::uint64_t bytes, const std::string& layer);
  OffloadDevice::Ticket start(const Kept& kept, bool write);
  void finish_write(Kept& kept);
  void fetch(Kept& kept);

  OffloadDevice& device_;
  std::mutex mutex_;
  std::map<std::uint64_t, Kept> kept_;                // by ids, which grow
  std::multimap<std::uint64_t, std::uint64_t> free_;  // buffers that nobody uses, by their bytes
  std::uint64_t next_ = 0;
};

}  // namespace capstan

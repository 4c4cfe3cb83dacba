#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace capstan::activation_checkpointing {

/// Where the inputs of regions wait for backward. Calls come one at a time.
class Boundaries {
 public:
  virtual ~Boundaries() = default;
  virtual std::uint64_t pack(const at::Tensor& boundary, const std::string& layer) = 0;
  virtual at::Tensor unpack(std::uint64_t id) = 0;
  virtual void drop(std::uint64_t id) = 0;
};

/// cpu_checkpointing: pinned host memory. Copies are queued on the device's stream. When one comes back, the one that
/// was packed before it is fetched as well, which backward asks for next.
class HostBoundaries final : public Boundaries {
 public:
  std::uint64_t pack(const at::Tensor& boundary, const std::string& layer) override;
  at::Tensor unpack(std::uint64_t id) override;
  void drop(std::uint64_t id) override;

 private:
  struct Kept {
    at::Device device = at::kCPU;
    at::Tensor host, fetched;
    at::Tensor fetch() const;
  };
  std::map<std::uint64_t, Kept> kept_;
  std::uint64_t next_ = 0;
};

/// contiguous_memory_optimization: `count` slots of one shape, reserved at the first call.
class SlotBoundaries final : public Boundaries {
 public:
  /// `on_host`: in pinned host memory.
  SlotBoundaries(std::int64_t count, bool on_host) : free_(static_cast<std::size_t>(count), true), on_host_(on_host) {}
  std::uint64_t pack(const at::Tensor& boundary, const std::string& layer) override;
  at::Tensor unpack(std::uint64_t id) override;
  void drop(std::uint64_t id) override { free_[id] = true; }

 private:
  void reserve(const at::Tensor& first, const std::string& layer);

  std::vector<bool> free_;
  bool on_host_;
  at::Device device_ = at::kCPU;
  at::Tensor slots_;   // [count, shape of a boundary]
  std::string layer_;  // that they were reserved for
};

}  // namespace capstan::activation_checkpointing

#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <memory>

namespace capstan::testing {

/// While it lives, tensors of the CPU come from here: LibTorch's allocator, with the bytes of tensors that live. One at
/// a time.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : others_(c10::GetCPUAllocator()) {
    peak = living.load();
    c10::SetCPUAllocator(this);
  }
  ~CountingAllocator() override { c10::SetCPUAllocator(others_); }
  at::DataPtr allocate(std::size_t bytes) override {
    struct Block {
      at::DataPtr memory;
      std::size_t bytes;
    };
    auto* block = new Block{others_->allocate(bytes), bytes};
    living += static_cast<std::int64_t>(bytes);
    if (living > peak) peak = living.load();
    return {block->memory.get(), block,
            [](void* context) {
              const std::unique_ptr<Block> owned(static_cast<Block*>(context));
              living -= static_cast<std::int64_t>(owned->bytes);
            },
            at::Device(at::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { others_->copy_data(to, from, bytes); }

  static inline std::atomic<std::int64_t> living = 0;
  static inline std::atomic<std::int64_t> peak = 0;  // the most that has lived since the allocator was made

 private:
  c10::Allocator* others_;
};

}  // namespace capstan::testing

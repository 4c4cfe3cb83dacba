#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "capstan/sdk/component.hpp"
#include "file_limit.hpp"
#include "ring.hpp"

namespace capstan::offload {
namespace {

constexpr unsigned kMostEntries = 32768;          // the kernel's own bound
constexpr unsigned kSlots = 1024;                 // registered buffers
constexpr std::uint64_t kMostOfASlot = 1u << 30;  // the kernel's own bound

std::string refusal(const char* call, int error) { return std::string(call) + " says: " + std::strerror(error); }

/// Neither SQPOLL, whose thread costs half a core, nor DEFER_TASKRUN, with which a look at the ring sees no completion.
class Uring final : public Ring {
 public:
  Uring(int file, unsigned depth) : file_(file), depth_(std::min(depth, kMostEntries)) {
    if (const int failed = io_uring_queue_init(depth_, &ring_, 0); failed < 0) {
      throw sdk::Error(refusal("io_uring_setup", -failed));
    }
    try {
      try_out();
    } catch (...) {
      io_uring_queue_exit(&ring_);
      throw;
    }
    io_uring_ring_dontfork(&ring_);
    has_file_ = io_uring_register_files(&ring_, &file_, 1) == 0;
    has_slots_ = io_uring_register_buffers_sparse(&ring_, kSlots) == 0;
  }
  ~Uring() override { io_uring_queue_exit(&ring_); }
  Uring(const Uring&) = delete;

  std::string_view name() const override { return "io_uring"; }
  unsigned depth() const override { return depth_; }

  std::size_t begin(std::span<const Request> requests) override {
    for (const Request& request : requests) prepare(*io_uring_get_sqe(&ring_), request);
    // What the kernel does not take now stays in the submission queue, and goes with the next call.
    submit();
    return requests.size();
  }

  void reap(std::size_t at_least, std::vector<Completion>& out) override {
    std::size_t found = drain(out);
    if (io_uring_sq_ready(&ring_) > 0) submit();
    while (found < at_least) {
      const NoFileSizeSignal guard;
      const int taken = io_uring_submit_and_wait(&ring_, static_cast<unsigned>(at_least - found));
      if (taken < 0 && taken != -EINTR && taken != -EAGAIN && taken != -EBUSY) {
        throw sdk::Error(refusal("io_uring_enter", -taken) + ".");
      }
      found += drain(out);
    }
  }

  int lend(void* memory, std::uint64_t bytes) override {
    if (!has_slots_) return ENOTSUP;
    for (std::uint64_t at = 0; at < bytes; at += kMostOfASlot) {
      Slot part{static_cast<std::byte*>(memory) + at, std::min(bytes - at, kMostOfASlot), memory};
      if (const int failed = fill_slot(part); failed != 0) {
        take_back(memory);
        return failed;
      }
    }
    return 0;
  }

  void take_back(void* memory) noexcept override {
    for (unsigned i = 0; i < slots_.size(); ++i) {
      if (slots_[i].lent != memory) continue;
      update(i, {});
      slots_[i] = {};
    }
  }

 private:
  struct Slot {
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
    void* lent = nullptr;  // what it is part of; null: the slot is free
  };

  /// Some sandboxes allow the first call and refuse the second.
  void try_out() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_nop(sqe);
    if (const int taken = io_uring_submit_and_wait(&ring_, 1); taken < 0) {
      throw sdk::Error(refusal("io_uring_enter", -taken));
    }
    io_uring_cqe* cqe = nullptr;
    if (io_uring_peek_cqe(&ring_, &cqe) == 0) io_uring_cqe_seen(&ring_, cqe);
  }

  void prepare(io_uring_sqe& sqe, const Request& request) {
    const int file = has_file_ ? 0 : file_;
    const auto bytes = static_cast<unsigned>(request.bytes);
    const int slot = slot_of(request);
    if (request.write && slot >= 0) {
      io_uring_prep_write_fixed(&sqe, file, request.memory, bytes, request.at, slot);
    } else if (request.write) {
      io_uring_prep_write(&sqe, file, request.memory, bytes, request.at);
    } else if (slot >= 0) {
      io_uring_prep_read_fixed(&sqe, file, request.memory, bytes, request.at, slot);
    } else {
      io_uring_prep_read(&sqe, file, request.memory, bytes, request.at);
    }
    if (has_file_) io_uring_sqe_set_flags(&sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(&sqe, request.tag);
  }

  void submit() {
    const NoFileSizeSignal guard;
    io_uring_submit(&ring_);
  }

  std::size_t drain(std::vector<Completion>& out) {
    std::array<io_uring_cqe*, 64> cqes;
    std::size_t found = 0;
    while (const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes.data(), cqes.size())) {
      for (unsigned i = 0; i < count; ++i) out.push_back({cqes[i]->user_data, cqes[i]->res});
      io_uring_cq_advance(&ring_, count);
      found += count;
    }
    return found;
  }

  int slot_of(const Request& request) const {
    const auto* begin = static_cast<std::byte*>(request.memory);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (begin >= slot.memory && begin + request.bytes <= slot.memory + slot.bytes) return static_cast<int>(i);
    }
    return -1;
  }

  int fill_slot(const Slot& part) {
    std::size_t free = 0;
    while (free < slots_.size() && slots_[free].lent != nullptr) ++free;
    if (free == kSlots) return ENOSPC;
    const int done = update(static_cast<unsigned>(free), {part.memory, part.bytes});
    if (done < 0) return -done;
    if (free == slots_.size()) slots_.emplace_back();
    slots_[free] = part;
    return 0;
  }

  int update(unsigned slot, iovec memory) {
    const __u64 tag = 0;
    return io_uring_register_buffers_update_tag(&ring_, slot, &memory, &tag, 1);
  }

  int file_;
  unsigned depth_;
  io_uring ring_{};
  bool has_file_ = false, has_slots_ = false;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<Ring> make_uring(int file, unsigned depth) { return std::make_unique<Uring>(file, depth); }

}  // namespace capstan::offload

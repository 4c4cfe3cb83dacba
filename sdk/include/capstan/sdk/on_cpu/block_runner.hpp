#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/on_cpu/fibers.hpp"
#include "capstan/sdk/on_cpu/launch_order.hpp"

/// Three counts or indices, as in CUDA.
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
inline constinit thread_local dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace capstan::sdk::kernels_on_cpu {

/// A line of a kernel's source: where it was launched, or waits. Not std::source_location, which clang 14 lacks.
struct SourceLine {
  const char* file = "";
  int line = 0;

  /// "kernels.cu:274"
  std::string text() const {
    const char* slash = std::strrchr(file, '/');
    return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line);
  }
  bool operator==(const SourceLine& other) const {
    return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
  }
};

/// Runs a kernel: blocks follow one another, the threads of a block are fibers that run one at a time, up to where they
/// wait. A warp goes as far as it can before the next one begins, so that what only a barrier orders is out of order
/// where the barrier lacks. One for each thread of the host.
class BlockRunner {
 public:
  static BlockRunner& of_this_thread() {
    static thread_local BlockRunner runner;
    return runner;
  }

  /// Calls kernel(context) once for each thread of each block. Ends the process with a sentence where a block can not
  /// go on because its threads wait in different places.
  void run(dim3 blocks, dim3 threads, Fiber::Task kernel, void* context, const SourceLine& launched) {
    kernel_ = kernel;
    context_ = context;
    launched_ = launched;
    order_ = LaunchOrder();
    gridDim = blocks;
    blockDim = threads;
    for (unsigned z = 0; z < blocks.z; ++z) {
      for (unsigned y = 0; y < blocks.y; ++y) {
        for (unsigned x = 0; x < blocks.x; ++x) {
          blockIdx = dim3(x, y, z);
          run_block(std::size_t{threads.x} * threads.y * threads.z);
        }
      }
    }
  }

  // The thread of the kernel that runs calls these.

  /// Goes on when all threads of the block that have not returned wait at `at`.
  void wait_for_block(const SourceLine& at) {
    Thread& self = threads_[current_];
    self.state = State::kAtBarrier;
    self.operation = "__syncthreads";
    self.at = at;
    self.fiber->yield();
  }
  /// Goes on when all lanes in `mask` that have not returned wait in the same operation at `at`, with what lane `from`
  /// has given: bytes of 0xff where that lane takes no part.
  std::uint64_t exchange(std::string_view operation, const SourceLine& at, unsigned mask, std::uint64_t given,
                         int from) {
    Thread& self = threads_[current_];
    self.state = State::kInExchange;
    self.operation = operation;
    self.at = at;
    self.mask = mask;
    self.given = given;
    self.from = from;
    self.fiber->yield();
    return self.got;
  }
  int lane() const { return static_cast<int>(current_ % kWarp); }

 private:
  enum class State { kReady, kAtBarrier, kInExchange, kReturned };
  struct Thread {
    State state = State::kReady;
    Fiber* fiber = nullptr;  // since it began
    std::string_view operation;
    SourceLine at;
    unsigned mask = 0;
    int from = 0;
    std::uint64_t given = 0, got = 0;
  };
  static constexpr std::size_t kWarp = static_cast<std::size_t>(warpSize);

  void run_block(std::size_t count) {
    threads_.assign(count, {});
    do {
      for (const std::size_t warp : order_.next((count + kWarp - 1) / kWarp)) run_warp(warp * kWarp);
    } while (open_barrier());
  }

  /// Runs a warp until none of its lanes can go on by itself. `first` is the thread that is its lane 0.
  void run_warp(std::size_t first) {
    const std::size_t lanes = std::min(kWarp, threads_.size() - first);
    do {
      for (const std::size_t lane : order_.next(lanes)) {
        if (threads_[first + lane].state == State::kReady) run_thread(first + lane);
      }
    } while (exchange_lanes(first, lanes));
  }

  void run_thread(std::size_t number) {
    current_ = number;
    const auto n = static_cast<unsigned>(number);
    threadIdx = dim3(n % blockDim.x, n / blockDim.x % blockDim.y, n / (blockDim.x * blockDim.y));
    Thread& thread = threads_[number];
    if (thread.fiber) {
      thread.fiber->resume();
    } else {
      thread.fiber = free_fiber();
      thread.fiber->start(kernel_, context_);
    }
    if (thread.fiber->done()) {
      thread.state = State::kReturned;
      free_.push_back(thread.fiber);
    }
  }

  Fiber* free_fiber() {
    if (free_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>());
      free_.push_back(fibers_.back().get());
    }
    Fiber* fiber = free_.back();
    free_.pop_back();
    return fiber;
  }

  static bool same_place(const Thread& a, const Thread& b) { return a.operation == b.operation && a.at == b.at; }

  /// Whether all lanes that `lane` waits for have come.
  bool is_met(std::size_t first, std::size_t lanes, std::size_t lane) const {
    const Thread& thread = threads_[first + lane];
    if (thread.state != State::kInExchange || (thread.mask >> lane & 1u) == 0) return false;
    for (std::size_t i = 0; i < lanes; ++i) {
      const Thread& other = threads_[first + i];
      if ((thread.mask >> i & 1u) == 0 || other.state == State::kReturned) continue;
      if (other.state != State::kInExchange || other.mask != thread.mask || !same_place(other, thread)) return false;
    }
    return true;
  }

  /// Gives the lanes in `mask`, which have met, what they asked for.
  void exchange_group(std::size_t first, std::size_t lanes, unsigned mask) {
    for (std::size_t i = 0; i < lanes; ++i) {
      Thread& thread = threads_[first + i];
      if ((mask >> i & 1u) == 0 || thread.state == State::kReturned) continue;
      const auto from = static_cast<std::size_t>(thread.from);
      const bool given = from < lanes && (mask >> from & 1u) != 0 && threads_[first + from].state != State::kReturned;
      thread.got = given ? threads_[first + from].given : ~std::uint64_t{0};
      thread.state = State::kReady;
    }
  }

  /// Lets all lanes go on that have met. Returns whether there were any.
  bool exchange_lanes(std::size_t first, std::size_t lanes) {
    bool any = false;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      if (!is_met(first, lanes, lane)) continue;
      exchange_group(first, lanes, threads_[first + lane].mask);
      any = true;
    }
    return any;
  }

  /// Lets the block go on if all of it waits at one barrier. Returns false where all of it has returned.
  bool open_barrier() {
    const Thread* one = nullptr;
    for (const Thread& thread : threads_) {
      if (thread.state == State::kReturned) continue;
      if (!one) one = &thread;
      if (thread.state != State::kAtBarrier || !same_place(thread, *one)) stand_still();
    }
    for (Thread& thread : threads_) {
      if (thread.state == State::kAtBarrier) thread.state = State::kReady;
    }
    return one != nullptr;
  }

  [[noreturn]] void stand_still() const {
    std::map<std::string, int> counts;
    for (const Thread& thread : threads_) {
      const bool returned = thread.state == State::kReturned;
      ++counts[returned ? "have returned" : "wait in " + std::string(thread.operation) + " at " + thread.at.text()];
    }
    std::string text;
    for (const auto& [where, count] : counts) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + where;
    std::fprintf(stderr, "capstan: block (%u, %u, %u) of the kernel launched at %s stands still: of its threads %s.\n",
                 blockIdx.x, blockIdx.y, blockIdx.z, launched_.text().c_str(), text.c_str());
    std::abort();
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  std::vector<Thread> threads_;
  std::size_t current_ = 0;
  LaunchOrder order_;
  Fiber::Task kernel_ = nullptr;
  void* context_ = nullptr;
  SourceLine launched_;
};

}  // namespace capstan::sdk::kernels_on_cpu

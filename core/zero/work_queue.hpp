#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace capstan {

/// Runs work in the order given: at once, or on a thread of its own.
class WorkQueue {
 public:
  /// `begin` is run by the thread, before all work. What it throws is what all work of the queue throws.
  explicit WorkQueue(bool threaded, std::function<void()> begin = {});
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;

  using Ticket = std::uint64_t;
  Ticket submit(std::function<void()> work);
  /// Waits until that work is done; throws what it or work before it threw.
  void wait(Ticket ticket);
  /// Waits for all work; throws what the first work that failed threw. Work that came after it was dropped.
  void drain();
  /// Forgets what is not under way, waits for what is, and for what it threw: who submitted it is gone.
  void discard() noexcept;

 private:
  void run(const std::function<void()>& begin);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  Ticket submitted_ = 0, done_ = 0;
  bool busy_ = false, stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace capstan

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace capstan {

/// Runs work in the order given: at once, or on a thread of its own.
class WorkQueue {
 public:
  /// Orders the device's work of two threads: see Accelerator::after_this().
  using AfterThis = std::function<std::function<void()>()>;
  /// `begin` is run by the thread, before all work. What it throws is what all work of the queue throws. `after_this`:
  /// the thread's stream waits for the work that a submitter had queued when it submitted, and the stream of a thread
  /// that waits for work waits for what that work has queued; null: work is done when a call returns.
  explicit WorkQueue(bool threaded, std::function<void()> begin = {}, AfterThis after_this = {});
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;

  using Ticket = std::uint64_t;
  Ticket submit(std::function<void()> work);
  /// Waits until that work is done; throws what it or work before it threw. Work that failed or was dropped is never
  /// done: every later wait for it throws as well.
  void wait(Ticket ticket);
  /// Waits for all work; throws what the first work that failed threw. Work that came after it was dropped; work that
  /// is submitted from then on runs again.
  void drain();
  /// Drops what is not under way, waits for what is, and does not ask how it ended: who submitted it is gone.
  void discard() noexcept;

 private:
  /// Work that was submitted and will never be done.
  struct Lost {
    Ticket first, last;
    std::exception_ptr why;
  };
  void run(const std::function<void()>& begin);
  /// Takes what is not done for lost. Nothing may be under way.
  void lose_the_rest();

  const AfterThis after_this_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  Ticket submitted_ = 0, ended_ = 0;  // done or lost
  std::function<void()> after_work_;  // orders streams behind the work that ended last; null: nothing to order
  bool busy_ = false, stopping_ = false;
  std::exception_ptr failure_;  // since the last drain(); what is submitted meanwhile is dropped
  std::vector<Lost> lost_;      // in the order of their tickets
  std::thread thread_;
};

}  // namespace capstan

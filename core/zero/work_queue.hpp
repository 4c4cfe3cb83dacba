#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace capstan {

/// Runs work in the order given: at once, or on a thread of its own.
class WorkQueue {
 public:
  explicit WorkQueue(bool threaded);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;

  void submit(std::function<void()> work);
  /// Waits for all of it; throws what the first that failed threw. What came after that one was dropped.
  void drain();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace capstan

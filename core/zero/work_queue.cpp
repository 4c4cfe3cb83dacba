#include "core/zero/work_queue.hpp"

#include <utility>

namespace capstan {

WorkQueue::WorkQueue(bool threaded) {
  if (threaded) thread_ = std::thread([this] { run(); });
}

WorkQueue::~WorkQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void WorkQueue::submit(std::function<void()> work) {
  if (!thread_.joinable()) return work();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void WorkQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty() && !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
    if (stopping_) return;
    const auto work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (failure) {
      failure_ = failure;
      work_.clear();
    }
    changed_.notify_all();
  }
}

}  // namespace capstan

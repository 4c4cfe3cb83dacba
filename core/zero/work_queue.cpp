#include "core/zero/work_queue.hpp"

#include <utility>

#include "core/errors.hpp"

namespace capstan {

namespace {

std::exception_ptr failure_of(const std::function<void()>& work) noexcept {
  try {
    if (work) work();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

WorkQueue::WorkQueue(bool threaded, std::function<void()> begin, AfterThis after_this)
    : after_this_(std::move(after_this)) {
  if (threaded) thread_ = std::thread([this, begin = std::move(begin)] { run(begin); });
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

WorkQueue::Ticket WorkQueue::submit(std::function<void()> work) {
  if (!thread_.joinable()) {
    work();
    return ended_ = ++submitted_;
  }
  if (after_this_) {
    work = [after_submitter = after_this_(), work = std::move(work)] {
      after_submitter();
      work();
    };
  }
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++submitted_;
    if (failure_) return ticket;
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
  return ticket;
}

void WorkQueue::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ >= ticket || failure_; });
  if (ended_ < ticket) std::rethrow_exception(failure_);
  for (const Lost& lost : lost_) {
    if (lost.first <= ticket && ticket <= lost.last) std::rethrow_exception(lost.why);
  }
  if (after_work_) after_work_();
}

void WorkQueue::lose_the_rest() {
  if (ended_ == submitted_) return;
  if (!failure_) {
    failure_ = std::make_exception_ptr(
        RuntimeFault("an exchange between the ranks was dropped before it was done: who asked for it has ended."));
  }
  lost_.push_back({ended_ + 1, submitted_, failure_});
  ended_ = submitted_;
  changed_.notify_all();
}

void WorkQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty() && !busy_; });
  lose_the_rest();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (after_work_) after_work_();
}

void WorkQueue::discard() noexcept {
  std::unique_lock lock(mutex_);
  work_.clear();
  changed_.wait(lock, [&] { return !busy_; });
  lose_the_rest();
  failure_ = nullptr;
}

void WorkQueue::run(const std::function<void()>& begin) {
  const std::exception_ptr not_begun = failure_of(begin);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
    if (stopping_) return;
    const auto work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure = not_begun ? not_begun : failure_of(work);
    std::function<void()> after_work;
    if (after_this_ && !failure) failure = failure_of([&] { after_work = after_this_(); });
    lock.lock();
    if (after_work) after_work_ = std::move(after_work);
    busy_ = false;
    if (failure) {
      failure_ = failure;
      work_.clear();
    } else {
      ++ended_;
    }
    changed_.notify_all();
  }
}

}  // namespace capstan

#include "core/run/elastic_guard.hpp"

#include <utility>

namespace capstan {

ElasticGuard::ElasticGuard(std::chrono::milliseconds patience, std::function<void()> end)
    : patience_(patience), end_(std::move(end)), thread_([this] { watch(); }) {}

ElasticGuard::~ElasticGuard() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ElasticGuard::give_up() {
  {
    const std::lock_guard lock(mutex_);
    if (!until_) until_ = Clock::now() + patience_;
  }
  changed_.notify_all();
}

void ElasticGuard::leave() {
  {
    const std::lock_guard lock(mutex_);
    until_.reset();
  }
  changed_.notify_all();
}

void ElasticGuard::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!until_) {
      changed_.wait(lock);
    } else if (Clock::now() < *until_) {
      changed_.wait_until(lock, Clock::time_point(*until_));
    } else {
      until_.reset();
      end_();
    }
  }
}

}  // namespace capstan

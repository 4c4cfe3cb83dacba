#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace capstan {

/// Ends a process that does not get out of a collective of a generation that is over: gloo may block for ever where a
/// connection is reset while it is being used, and the other processes would wait for this one. [any thread]
class ElasticGuard {
 public:
  /// `end` is called where a collective that was given up has not been left after `patience`.
  ElasticGuard(std::chrono::milliseconds patience, std::function<void()> end);
  ~ElasticGuard();
  ElasticGuard(const ElasticGuard&) = delete;

  /// A collective is given up, because its generation is over.
  void give_up();
  /// While one lives, collectives of a generation run.
  class Generation {
   public:
    explicit Generation(ElasticGuard& guard) : guard_(guard) {}
    ~Generation() { guard_.leave(); }
    Generation(const Generation&) = delete;

   private:
    ElasticGuard& guard_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  void leave();
  void watch();

  const std::chrono::milliseconds patience_;
  const std::function<void()> end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Clock::time_point> until_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace capstan

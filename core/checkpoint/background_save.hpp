#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <mutex>

namespace capstan {

/// Writes one checkpoint at a time beside the training. What writing throws is thrown by the next check() or finish();
/// the destructor waits, and logs it. [engine]
class BackgroundSave {
 public:
  BackgroundSave() = default;
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;

  /// Call finish() before: one at a time.
  void start(std::function<void()> write);
  bool under_way() const;
  /// Waits, `patience` at most. Whether what was started last has been written, and well. [any thread]
  bool written_within(std::chrono::milliseconds patience) const;
  /// Throws what failed, without waiting.
  void check();
  /// Waits.
  void finish();

 private:
  std::shared_future<void> last() const;

  mutable std::mutex mutex_;  // of the next
  std::shared_future<void> writing_;
};

}  // namespace capstan

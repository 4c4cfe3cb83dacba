#pragma once

#include <functional>
#include <future>

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
  /// Throws what failed, without waiting.
  void check();
  /// Waits.
  void finish();

 private:
  std::future<void> writing_;
};

}  // namespace capstan

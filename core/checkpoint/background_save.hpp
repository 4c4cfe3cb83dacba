#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <mutex>

#include "core/checkpoint/checkpoint.hpp"
#include "core/comm/communicator.hpp"
#include "core/config/config.hpp"

namespace capstan {

/// Writes one checkpoint at a time beside the training. What writing throws is thrown by the next check() or finish();
/// the destructor waits, and logs it. [engine]
class BackgroundSave {
 public:
  BackgroundSave() = default;
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;

  /// Whether these contents are to be written while training goes on, from a copy of them: as checkpoint.writer and
  /// datastates_ckpt ask, and where a copy is to be had. Warns where they ask for it in vain. The same on all ranks,
  /// and called by all of them.
  bool takes(const CheckpointContents& contents, const Config& config, Communicator& ranks);
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
  bool told_that_saves_wait_ = false;  // for values that are not in memory
};

}  // namespace capstan

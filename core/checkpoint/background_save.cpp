#include "core/checkpoint/background_save.hpp"

#include <chrono>
#include <exception>
#include <utility>

#include "core/log.hpp"

namespace capstan {

BackgroundSave::~BackgroundSave() {
  try {
    finish();
  } catch (const std::exception& error) {
    log::error(std::string("the checkpoint that was being written in the background failed: ") + error.what());
  }
}

std::shared_future<void> BackgroundSave::last() const {
  const std::lock_guard lock(mutex_);
  return writing_;
}

void BackgroundSave::start(std::function<void()> write) {
  std::shared_future<void> writing = std::async(std::launch::async, std::move(write)).share();
  const std::lock_guard lock(mutex_);
  writing_ = std::move(writing);
}

bool BackgroundSave::under_way() const {
  const auto writing = last();
  return writing.valid() && writing.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

bool BackgroundSave::written_within(std::chrono::milliseconds patience) const {
  const auto writing = last();
  if (!writing.valid() || writing.wait_for(patience) != std::future_status::ready) return false;
  try {
    writing.get();
    return true;
  } catch (const std::exception&) {
    return false;  // thrown to the engine's thread
  }
}

void BackgroundSave::check() {
  if (!under_way()) finish();
}

void BackgroundSave::finish() {
  const auto writing = last();
  if (!writing.valid()) return;
  writing.wait();
  {
    const std::lock_guard lock(mutex_);
    writing_ = {};
  }
  writing.get();
}

}  // namespace capstan

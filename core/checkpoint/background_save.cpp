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

void BackgroundSave::start(std::function<void()> write) { writing_ = std::async(std::launch::async, std::move(write)); }

bool BackgroundSave::under_way() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void BackgroundSave::check() {
  if (writing_.valid() && !under_way()) writing_.get();
}

void BackgroundSave::finish() {
  if (writing_.valid()) writing_.get();
}

}  // namespace capstan

#include "core/checkpoint/background_save.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "core/log.hpp"

namespace capstan {

namespace {

/// Bytes that a copy of the contents takes: the most of any rank. Nothing where a rank has values that are not in
/// memory.
std::optional<double> bytes_of_copy(const CheckpointContents& contents, Communicator& ranks) {
  constexpr const char* kElsewhere = "elsewhere";
  double bytes = 0;
  bool elsewhere = false;
  for (const CheckpointTensor& tensor : contents.tensors) {
    bytes += static_cast<double>(tensor.values.nbytes());
    elsewhere |= tensor.read != nullptr;
  }
  // Ranks that write now and ranks that write later would wait for each other.
  for (const std::string& text :
       ranks.all_gather_text("save_checkpoint, size", elsewhere ? kElsewhere : std::to_string(bytes))) {
    if (text == kElsewhere) return std::nullopt;
    bytes = std::max(bytes, std::stod(text));
  }
  return bytes;
}

}  // namespace

bool BackgroundSave::takes(const CheckpointContents& contents, const Config& config, Communicator& ranks) {
  const bool decoupled = config.checkpoint.writer && config.checkpoint.writer->decoupled;
  if (!config.datastates_ckpt && !decoupled) return false;
  const std::optional<double> bytes = bytes_of_copy(contents, ranks);
  if (!bytes) {
    if (!std::exchange(told_that_saves_wait_, true) && ranks.rank() == 0) {
      log::warning(std::string(config.datastates_ckpt ? "datastates_ckpt" : "checkpoint.writer.decoupled") +
                   ": this run keeps values outside memory, and has no room for a second copy of them. Training waits "
                   "until each checkpoint is written.");
    }
    return false;
  }
  if (!config.datastates_ckpt || !config.datastates_ckpt->host_cache_size) return true;
  const double cache = *config.datastates_ckpt->host_cache_size;
  if (*bytes <= cache * 1e9) return true;
  log::warning("datastates_ckpt.host_cache_size: is " + c10::str(cache) +
               " GB, and a copy of what a rank saves takes " + c10::str(*bytes / 1e9) +
               " GB. Training waits until the checkpoint is written.");
  return false;
}

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

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/progress_bar.hpp"

namespace capstan::cli {

/// "412 MB of 1.02 GB  31.2 MB/s  ETA 0:00:20", drawn over itself on a terminal.
class ReadingProgress {
 public:
  explicit ReadingProgress(const std::vector<std::string>& files);

  /// Draws a few times a second at most, however often it is called.
  void add(std::uint64_t bytes);
  /// Bytes that an earlier run has read: no part of the rate.
  void skip(std::uint64_t bytes) { skipped_ += bytes; }
  /// "31.2 MB/s": of all that was read since the begin; empty where nothing was.
  std::string rate_text() const;

 private:
  double rate() const;

  ProgressBar bar_;
  std::uint64_t bytes_ = 0, done_ = 0, skipped_ = 0;
  std::uint64_t looked_at_ = 0;  // done_ when the time was looked at
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace capstan::cli

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

  void add(std::uint64_t bytes);
  /// "31.2 MB/s": of all that was read since the begin.
  std::string rate_text() const;

 private:
  double rate() const;

  ProgressBar bar_;
  std::uint64_t bytes_ = 0, done_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace capstan::cli

#include "cli/data/reading_progress.hpp"

#include <algorithm>
#include <filesystem>

#include "core/text/numbers.hpp"

namespace capstan::cli {
namespace {

constexpr std::uint64_t kBetweenLooks = 64 << 10;

}  // namespace

ReadingProgress::ReadingProgress(const std::vector<std::string>& files) : bar_(true) {
  for (const std::string& file : files) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(file, error);
    if (!error) bytes_ += size;
  }
}

void ReadingProgress::add(std::uint64_t bytes) {
  done_ += bytes;
  // Rows may have a few bytes each: most of them cost an addition.
  if (done_ - looked_at_ < kBetweenLooks) return;
  looked_at_ = done_;
  if (!bar_.is_due() || rate() <= 0) return;
  const std::uint64_t passed = done_ + skipped_;
  const double left = static_cast<double>(bytes_ - std::min(passed, bytes_)) / rate();
  bar_.show(bytes_text(passed) + " of " + bytes_text(bytes_) + "  " + rate_text() + "  ETA " + duration_text(left));
}

std::string ReadingProgress::rate_text() const {
  return rate() > 0 ? bytes_text(static_cast<std::uint64_t>(rate())) + "/s" : "";
}

double ReadingProgress::rate() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  return passed.count() > 0 ? static_cast<double>(done_) / passed.count() : 0;
}

}  // namespace capstan::cli

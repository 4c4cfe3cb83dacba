#include "core/comm/attendance.hpp"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "core/errors.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kArrived = "has arrived";
constexpr const char* kConnected = "has connected";
constexpr const char* kWaits = "has arrived and waits for the others";
constexpr const char* kSilent = "has arrived and does not answer any more";
constexpr const char* kMissing = "has not appeared";
constexpr const char* kUnknown = "cannot be asked: rank 0, which would know, is gone";
const std::string kStopped = "stopped: ";
constexpr std::chrono::milliseconds kLookAgain{20};

std::string rows(const std::vector<std::optional<std::string>>& all) {
  std::string table;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    table += "\n  rank " + std::to_string(rank) + "  " + all[rank].value_or(kMissing);
  }
  return table;
}

}  // namespace

Attendance::Attendance(Board board, int rank, int size) : board_(std::move(board)), rank_(rank), size_(size) {}

std::string Attendance::key_of(int rank) { return "start/" + std::to_string(rank); }

void Attendance::arrived() { board_.tell(key_of(rank_), kArrived); }
void Attendance::connected() { board_.tell(key_of(rank_), kConnected); }

void Attendance::stopped(const std::string& why) noexcept {
  try {
    board_.tell(key_of(rank_), kStopped + why);
  } catch (const std::exception&) {
    // Rank 0 is gone; the others see that themselves.
  }
}

std::vector<std::optional<std::string>> Attendance::look() const {
  std::vector<std::optional<std::string>> all;
  for (int rank = 0; rank < size_; ++rank) {
    try {
      all.push_back(board_.look(key_of(rank)));
    } catch (const std::exception&) {
      all.emplace_back(kUnknown);
    }
  }
  return all;
}

void Attendance::check() const {
  const auto all = look();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank] || !all[rank]->starts_with(kStopped)) continue;
    throw RuntimeFault("rank " + std::to_string(rank_) + ": rank " + std::to_string(rank) + " of " +
                       std::to_string(size_) + " " + *all[rank]);
  }
}

std::string Attendance::table() { return rows(look()); }

std::string Attendance::table_of_answers(std::chrono::milliseconds patience) {
  try {
    board_.tell(key_of(rank_), kWaits);
  } catch (const std::exception&) {
    // The table says that rank 0 is gone.
  }
  const auto until = Clock::now() + patience;
  const auto silent = [](const auto& text) { return text == kArrived; };
  auto all = look();
  while (std::any_of(all.begin(), all.end(), silent) && Clock::now() < until) {
    std::this_thread::sleep_for(kLookAgain);
    all = look();
  }
  std::replace_if(all.begin(), all.end(), silent, std::optional<std::string>(kSilent));
  return rows(all);
}

}  // namespace capstan

#include "core/comm/agreed_start.hpp"

#include <thread>
#include <vector>

#include "core/comm/port_file.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAskAgain{10};

std::string question_of(int rank) { return "asks/" + std::to_string(rank); }
std::string answer_to(const std::string& word) { return "answer/" + word; }

}  // namespace

std::optional<std::string> AgreedStart::number(std::chrono::milliseconds patience) {
  if (rank_ == 0) return number_ = std::to_string(board_.count("starts"));
  const auto until = Clock::now() + patience;
  const std::string word = random_secret();
  board_.tell(question_of(rank_), word);
  while (true) {
    if (auto answer = board_.look(answer_to(word))) return answer;
    if (Clock::now() >= until) return std::nullopt;
    std::this_thread::sleep_for(kAskAgain);
  }
}

void AgreedStart::answer(const std::function<bool(int rank)>& arrived, std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  std::vector<std::string> answered(static_cast<std::size_t>(size_));
  for (int rank = 1; rank < size_;) {
    if (arrived(rank)) {
      ++rank;
      continue;
    }
    for (int asking = rank; asking < size_; ++asking) {
      std::string& last = answered[static_cast<std::size_t>(asking)];
      const auto word = board_.look(question_of(asking));
      if (!word || *word == last) continue;
      board_.tell(answer_to(*word), number_);
      last = *word;
    }
    if (Clock::now() >= until) return;
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace capstan

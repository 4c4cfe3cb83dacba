#include "core/elastic/launcher/callers.hpp"

#include <algorithm>
#include <utility>

#include "core/log.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

/// Callers that are taken at a time, so that a flood of them does not keep a launcher from its processes.
constexpr int kAtATime = 256;
/// Callers in all.
constexpr std::size_t kMostCallers = 256;
/// After so much time a caller that has said nothing makes room for another one: who has the secret needs less.
constexpr std::chrono::milliseconds kUndisturbed{200};
/// The log tells of callers with another secret so often at most.
constexpr std::chrono::seconds kTellsAgain{10};

}  // namespace

void ElasticCallers::admit(std::unique_ptr<ElasticLink> caller) {
  const auto is_unproven = [](const auto& one) { return !one->is_proven(); };
  const auto unproven = std::count_if(callers_.begin(), callers_.end(), is_unproven);
  if (unproven >= static_cast<std::ptrdiff_t>(kMostUnproven)) {
    const auto oldest = std::find_if(callers_.begin(), callers_.end(), is_unproven);
    if ((*oldest)->age() < kUndisturbed) return;
    callers_.erase(oldest);
  }
  if (callers_.size() < kMostCallers) callers_.push_back(std::move(caller));
}

void ElasticCallers::tell_of_other_secret(const ElasticLink& caller) {
  if (told_at_ && Clock::now() - *told_at_ < kTellsAgain) return;
  told_at_ = Clock::now();
  log::warning("launch: a caller at " + caller.peer_address() + " has another secret, and may not join.");
}

void ElasticCallers::hear(ElasticListener& listener, const Answer& answer) {
  for (int taken = 0; taken < kAtATime; ++taken) {
    auto caller = listener.answer();
    if (!caller) break;
    admit(std::move(caller));
  }
  for (auto& caller : callers_) {
    const std::optional<Json> message = caller->receive();
    if (caller->has_other_secret()) tell_of_other_secret(*caller);
    if (message) answer(caller, *message);
    if (caller) caller->keep_alive();
    // What was answered is kept until the other end has read it and closes.
    if (caller && (caller->is_closed() || caller->is_silent())) caller.reset();
  }
  std::erase(callers_, nullptr);
}

}  // namespace capstan

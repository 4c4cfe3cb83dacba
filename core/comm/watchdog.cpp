#include "core/comm/watchdog.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <thread>

#include "core/text/numbers.hpp"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kReadPatience = std::chrono::seconds(2);
constexpr std::chrono::milliseconds kLinger = std::chrono::seconds(2), kReadAgain{20};

// Whereabouts::gone holds why a rank stopped, or one of these two.
constexpr const char* kFinished = "finished";
constexpr const char* kUnknown = "cannot be asked";

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text;
}

std::string call_text(const Whereabouts& at) {
  return "'" + at.name + "' (call " + std::to_string(at.call) + ", " + bytes_text(at.bytes) + ")";
}

std::string key_of(int rank) { return "where/" + std::to_string(rank); }

}  // namespace

std::string Whereabouts::text() const {
  std::ostringstream out;
  out << call << '\n'
      << bytes << '\n'
      << inside << '\n'
      << listening << '\n'
      << seconds << '\n'
      << name << '\n'
      << gone;
  return out.str();
}

Whereabouts Whereabouts::parse(const std::string& text) {
  Whereabouts at;
  std::istringstream in(text);
  in >> at.call >> at.bytes >> at.inside >> at.listening >> at.seconds;
  in.ignore();
  std::getline(in, at.name);
  std::getline(in, at.gone, '\0');
  return at;
}

std::string whereabouts_table(const std::vector<Whereabouts>& all) {
  std::string table;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Whereabouts& at = all[rank];
    table += "\n  rank " + std::to_string(rank) + "  ";
    if (!at.gone.empty()) {
      table += at.gone == kFinished ? "has finished" : "stopped: " + at.gone;
    } else if (at.inside) {
      table += "is in " + call_text(at) + " for " + seconds_text(at.seconds);
    } else if (at.call == 0) {
      table += "has been in no collective yet";
    } else {
      table += "computes for " + seconds_text(at.seconds) + "; its last was " + call_text(at);
    }
  }
  return table;
}

namespace {

/// What helps where ranks gather other parameters at once: experts without tokens, branches that one rank takes.
std::string advice(const Whereabouts& mine, const Whereabouts& other) {
  const auto gathers = [](const Whereabouts& at) { return at.name.find(", gather of ") != std::string::npos; };
  if (!gathers(mine) && !gathers(other)) return "";
  return ". Where ranks use other parameters in one step (experts without tokens), set "
         "zero_optimization.stage3_param_persistence_threshold above the number of elements of the largest of them, or "
         "use stage 2";
}

}  // namespace

std::string mismatch(const std::vector<Whereabouts>& all, int own) {
  const Whereabouts& mine = all[static_cast<std::size_t>(own)];
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Whereabouts& other = all[rank];
    const std::string name = "rank " + std::to_string(rank);
    if (!other.gone.empty() && other.call < mine.call) {
      return other.gone == kFinished ? name + " has finished without it" : name + " stopped: " + other.gone;
    }
    if (!other.inside || other.call != mine.call) continue;
    if (other.name != mine.name) return name + " is in another one, '" + other.name + "'" + advice(mine, other);
    if (other.bytes != mine.bytes) {
      return name + " exchanges " + std::to_string(other.bytes) + " bytes in it, rank " + std::to_string(own) + " " +
             std::to_string(mine.bytes) + ": their tensors differ in shape";
    }
  }
  return "";
}

struct Watchdog::State {
  std::shared_ptr<Transport> transport;
  int rank, size;
  Options options;

  std::mutex mutex;
  std::condition_variable wake;
  Whereabouts here;
  Clock::time_point since = Clock::now();
  Exchange* exchange = nullptr;
  std::string verdict;
  std::optional<Clock::time_point> end_by;
  bool stopping = false, failed = false;
  std::mutex store_mutex;  // one at a time on the transport; never held together with `mutex`
  std::thread thread;

  Whereabouts now() {
    const std::lock_guard lock(mutex);
    here.seconds = std::chrono::duration<double>(Clock::now() - since).count();
    return here;
  }

  /// What rank `other` says; throws where it cannot be read.
  Whereabouts read(int other) {
    const std::lock_guard lock(store_mutex);
    return Whereabouts::parse(transport->read(key_of(other), kReadPatience));
  }

  /// What others say stays as it was where it cannot be read: rank 0, who keeps it, may be gone.
  std::vector<Whereabouts> read_all() {
    std::vector<Whereabouts> all(static_cast<std::size_t>(size));
    for (int other = 0; other < size; ++other) {
      try {
        all[static_cast<std::size_t>(other)] = read(other);
      } catch (const std::exception&) {
        all[static_cast<std::size_t>(other)].gone = kUnknown;
      }
    }
    all[static_cast<std::size_t>(rank)] = now();
    return all;
  }

  void publish() noexcept {
    try {
      const std::string text = now().text();
      const std::lock_guard lock(store_mutex);
      transport->publish(key_of(rank), text);
    } catch (const std::exception&) {
      // Rank 0 is gone; the collective says so.
    }
  }

  /// Why a collective that has taken so long is not waited for any more; empty: it is.
  std::string lateness(double seconds) {
    const std::lock_guard lock(mutex);
    const double limit = std::chrono::duration<double>(options.timeout).count();
    if (seconds > limit) return "it did not end within " + seconds_text(limit);
    return end_by && Clock::now() > *end_by ? "it did not end before this rank did" : "";
  }

  void stop(const std::string& why, bool listening) {
    {
      const std::lock_guard lock(mutex);
      here.gone = why;
      here.listening = listening;
      here.inside = false;
      failed = true;
    }
    publish();
  }

  void look() {
    const Whereabouts at = now();
    if (!at.inside) return;
    // Nobody else is asked: rank 0, who keeps what they say, may be out of reach.
    if (options.given_up && options.given_up()) return abort(at, "it was given up.");
    const std::string lateness = this->lateness(at.seconds);
    const bool late = !lateness.empty();
    const std::vector<Whereabouts> all = read_all();
    std::string found;
    for (const Whereabouts& other : all) {
      if (other.gone == kUnknown && !late) return;
    }
    found = mismatch(all, rank);
    if (found.empty()) found = lateness;
    if (!found.empty()) abort(at, found + "." + whereabouts_table(all));
  }

  void abort(const Whereabouts& at, const std::string& why) {
    const std::lock_guard lock(mutex);
    // It may have ended meanwhile.
    if (!here.inside || here.call != at.call || exchange == nullptr) return;
    verdict = why;
    failed = true;
    exchange->abort();
  }

  /// Rank 0 keeps what all have said: where the run has failed, the others are to read it before that is gone.
  void linger() {
    const auto until = Clock::now() + kLinger;
    while (Clock::now() < until) {
      const std::vector<Whereabouts> all = read_all();
      if (std::all_of(all.begin() + 1, all.end(),
                      [](const Whereabouts& at) { return !at.gone.empty() && !at.listening; }))
        return;
      std::this_thread::sleep_for(kReadAgain);
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      lock.unlock();
      publish();
      look();
      lock.lock();
      wake.wait_for(lock, options.every, [&] { return stopping; });
    }
  }
};

Watchdog::Watchdog(std::shared_ptr<Transport> transport, int rank, int size, const Options& options)
    : state_(std::make_unique<State>()) {
  state_->transport = std::move(transport);
  state_->rank = rank;
  state_->size = size;
  state_->options = options;
  state_->publish();
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    if (state_->here.gone.empty()) state_->here.gone = kFinished;
  }
  state_->wake.notify_all();
  state_->thread.join();
  state_->publish();
  if (state_->rank == 0 && state_->failed && state_->options.lingers) state_->linger();
}

void Watchdog::enter(std::uint64_t call, const std::string& name, std::uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->here.call = call;
  state_->here.name = name;
  state_->here.bytes = bytes;
  state_->here.inside = true;
  state_->since = Clock::now();
  state_->verdict.clear();
}

void Watchdog::end_by(std::optional<Clock::time_point> when) {
  const std::lock_guard lock(state_->mutex);
  state_->end_by = when;
}

void Watchdog::watch(Exchange* exchange) {
  const std::lock_guard lock(state_->mutex);
  state_->exchange = exchange;
}

void Watchdog::leave() {
  const std::lock_guard lock(state_->mutex);
  state_->here.inside = false;
  state_->since = Clock::now();
}

std::string Watchdog::verdict() {
  const std::lock_guard lock(state_->mutex);
  return state_->verdict;
}

std::string Watchdog::table() { return whereabouts_table(state_->read_all()); }

std::pair<int, std::string> Watchdog::last_words(int peer) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->failed = true;
  }
  const std::vector<Whereabouts> all = state_->read_all();
  const auto failed = [](const Whereabouts& at) {
    return !at.gone.empty() && at.gone != kFinished && at.gone != kUnknown;
  };
  auto first = all.end();
  for (auto one = all.begin(); one != all.end(); ++one) {
    if (failed(*one) && (first == all.end() || one->call < first->call)) first = one;
  }
  if (first != all.end()) return {static_cast<int>(first - all.begin()), first->gone};
  const std::string& words = all[static_cast<std::size_t>(peer)].gone;
  return {peer, words == kUnknown ? "" : words};
}

void Watchdog::tell_failure(const std::string& why) { state_->stop(why, /*listening=*/false); }

bool Watchdog::tell_failure_as_rank_0(const std::string& why, std::chrono::milliseconds patience) {
  state_->stop(why, /*listening=*/true);
  const auto until = Clock::now() + patience;
  std::string words;
  try {
    while ((words = state_->read(0).gone).empty() && Clock::now() < until) std::this_thread::sleep_for(kReadAgain);
  } catch (const std::exception&) {
    // Rank 0 is gone, and has said nothing.
  }
  state_->stop(why, /*listening=*/false);
  return words == why;
}

}  // namespace capstan

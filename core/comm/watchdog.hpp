#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/transport.hpp"

namespace capstan {

/// The collective that a rank is in, or was in last.
struct Whereabouts {
  std::uint64_t call = 0;  // counts collectives from 1
  std::string name;
  std::uint64_t bytes = 0;  // bytes that the collective sends and receives
  bool inside = false;
  bool listening = false;  // it has stopped, and ends when it has read why rank 0 did
  double seconds = 0;      // inside, or since it left
  std::string gone;        // why the rank stopped: its message, or "finished"

  std::string text() const;
  static Whereabouts parse(const std::string& text);
};

/// What is wrong with ranks that stand as `all` says, seen from rank `own`, which is in a collective; empty while there
/// is nothing. The sentence of a rank that stopped, of one in another collective, or with another size of the same.
std::string mismatch(const std::vector<Whereabouts>& all, int own);

/// "  rank 0  in 'step 12, norm' (call 57, 2.05 kB) for 12 s\n  rank 1 ..."
std::string whereabouts_table(const std::vector<Whereabouts>& all);

/// A thread that tells the other ranks where this one is, and ends a collective that cannot end.
class Watchdog {
 public:
  struct Options {
    std::chrono::milliseconds every, timeout;
    bool lingers = true;             // on rank 0, where the run has failed: until the others have read why
    std::function<bool()> given_up;  // whether what a collective waits for will not come; null: it may
  };
  Watchdog(std::shared_ptr<Transport> transport, int rank, int size, const Options& options);
  /// Tells the others that this rank has finished.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

  /// The call begins; `exchange` is aborted if it cannot end.
  void enter(std::uint64_t call, const std::string& name, std::uint64_t bytes);
  void watch(Exchange* exchange);  // null: nothing to abort any more
  void leave();
  /// Why the exchange was aborted.
  std::string verdict();
  /// From then on a collective is late, whatever the time-out; nullopt: no more.
  void end_by(std::optional<std::chrono::steady_clock::time_point> when);
  /// Where every rank is, read anew.
  std::string table();
  /// The rank that failed first, and why; else `peer`, with "finished" or "". One rank's
  /// end soon ends others.
  std::pair<int, std::string> last_words(int peer);
  void tell_failure(const std::string& why);
  /// The same, and whether rank 0 has stopped with these words, or does so within `patience`.
  bool tell_failure_as_rank_0(const std::string& why, std::chrono::milliseconds patience);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace capstan

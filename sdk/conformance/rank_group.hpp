#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capstan/plugin.h"

namespace capstan::conformance {

/// Ranks as threads of this process, with collectives that meet and copy. When one of them fails, or two make different
/// calls, all leave with an error instead of waiting for each other.
class RankGroup {
 public:
  explicit RankGroup(std::uint32_t size) : size_(size), calls_(size) {}

  /// Runs body(rank) for each; throws what the first that failed by itself threw.
  void run(const std::function<void(std::uint32_t rank)>& body);
  /// The collectives of one rank. `host.ctx` becomes `seat`, which must live as long as the host.
  struct GroupSeat;
  struct Seat {
    RankGroup* group;
    std::uint32_t rank;
    std::vector<std::uint32_t> members = {};  // the ranks of a group that was split off; empty: all
    std::map<std::vector<std::uint32_t>, std::shared_ptr<GroupSeat>> groups = {};  // by the colors of all ranks
  };
  struct GroupSeat {
    Seat seat;
    capstan_host host;
  };
  static void lend(capstan_host& host, Seat& seat);

 private:
  struct Collectives;
  struct Call {
    std::string name;
    capstan_tensor in = nullptr, out = nullptr;
    std::uint32_t color = 0;
  };

  /// Meets with all others, compares the calls and lets `copy` see those of the seat's members; returns when every rank
  /// has.
  void meet(const Seat& seat, Call call, const std::function<void(const std::vector<Call>&)>& copy);
  void arrive(std::unique_lock<std::mutex>& lock);
  void leave_all(const std::string& why);

  std::uint32_t size_;
  std::vector<Call> calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t waiting_ = 0;
  std::uint64_t meetings_ = 0;
  std::string broken_;  // why nobody may wait any more
};

}  // namespace capstan::conformance

#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/plugins/plugin_host.hpp"

namespace capstan::testing {

/// The collectives of a process group among threads: each call meets at a barrier and copies through memory. Sums are
/// taken in rank order, so all ranks get the same bits.
class Meeting {
 public:
  explicit Meeting(std::uint32_t size) : barrier_(size), tensors_(size), sent_(size) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(tensors_.size()); }
  /// Runs body(seat) on one thread a rank, and throws what the first of them threw.
  void run(const std::function<void(Seat)>& body);

  void all_reduce_sum(std::uint32_t rank, capstan_tensor values);
  void all_to_all(std::uint32_t rank, capstan_tensor out, capstan_tensor in);
  void all_gather(std::uint32_t rank, capstan_tensor out, capstan_tensor in);
  void broadcast(std::uint32_t rank, capstan_tensor values, std::uint32_t root);

  /// Bytes that a rank gave to others, by collective ("all_to_all"): what a flat exchange sends, for an all-reduce
  /// that of a ring.
  std::uint64_t sent(std::uint32_t rank, const std::string& collective) { return sent_[rank][collective]; }

 private:
  void post(std::uint32_t rank, capstan_tensor values);

  std::barrier<> barrier_;
  std::vector<capstan_tensor> tensors_;
  std::vector<std::map<std::string, std::uint64_t>> sent_;
};

}  // namespace capstan::testing

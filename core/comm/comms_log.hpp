#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/typed/communication.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// 10^9 bits a second. Both 0 for a call that took no time.
struct Bandwidth {
  double algorithm = 0, bus = 0;
};

/// The bandwidths of one call of `op` over `ranks` processes. `bytes` is the size of the op's own tensor: one rank's
/// part for all_gather and reduce_scatter. The formulas are those of NCCL's tests but for the algorithm bandwidth of an
/// all_reduce, which DeepSpeed doubles.
Bandwidth bandwidth_of(std::string_view op, double bytes, double milliseconds, int ranks);

/// The mean without the smallest and the largest tenth, of round(n / 10) values each, half to even; 0 of nothing.
double trimmed_mean(std::vector<double> values);

/// "678.86 MB", 1024-based, with one or two decimals; "0B".
std::string comms_size_text(std::uint64_t bytes);

/// The collectives of one name and message size.
struct CommsRow {
  std::string op;  // with the calling function, where `debug` asks for it
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  double total_ms = 0, average_ms = 0;                // averages are trimmed means
  double algorithm_gbps = 0, bus_gbps = 0;            // averages over the calls
  double comm_ms = 0, average_comm_ms = 0;            // times of the fastest rank in each call
  double straggler_ms = 0, average_straggler_ms = 0;  // this rank's times beyond the fastest rank's
};

/// What was recorded, by op in the order in which they were first seen and by rising size.
struct CommsSummary {
  std::vector<CommsRow> rows;
  bool stragglers = false;  // compared over the ranks
  int rank = 0, world_size = 1;

  /// The tables that DeepSpeed's log_summary prints, without an end of line.
  std::string text() const;
  /// What DeepSpeed's log_summary returns: {summary, straggler_analysis, metadata}.
  Json json() const;
};

/// What this process's collectives send and how long they take. Bytes and times are always added up; single calls are
/// recorded where `comms_logger` or record_all() asks for it. [any thread: with overlap_comm another one than the
/// engine's sends and adds]
class CommsLog {
 public:
  struct Traffic {
    std::uint64_t calls = 0, bytes = 0;  // bytes given to others
    double milliseconds = 0;
  };
  using TrafficByName = std::map<std::string, Traffic, std::less<>>;
  using Print = std::function<void(const std::string& line)>;

  /// Records as the section says; `print` gets the lines of `verbose`.
  void configure(const CommsLoggerConfig& config, Print print);
  void record_all(bool on);
  /// Ops by name; DeepSpeed's names for the same ("all_gather_into_tensor") are as good.
  void record_ops(const std::vector<std::string>& ops, bool on);
  /// Forgets the recorded calls.
  void reset();

  /// The traffic of every collective so far by name, whether its calls were recorded or not.
  TrafficByName traffic() const;
  Traffic total() const;
  std::size_t recorded_calls() const;
  /// This rank's time of every recorded call, in order.
  std::vector<double> times() const;
  /// `fastest`: the least time of any rank for each recorded call; empty: no comparison. Calls that were recorded after
  /// those are not compared.
  CommsSummary summary(int rank, int world_size, const std::vector<double>& fastest = {}) const;

  struct Call {
    std::string_view op, caller;
    std::uint64_t bytes = 0;  // the op's tensor, as bandwidth_of() wants it
    std::uint64_t sent = 0;
    double milliseconds = 0;
    int ranks = 1;
  };
  void add(const Call& call);

 private:
  struct Key {
    std::string op, name;  // name: as shown
    std::uint64_t bytes = 0;
    int ranks = 1;
  };
  struct Recorded {
    std::uint32_t key;
    float milliseconds;
  };
  // Called with the mutex.
  void add_op(const std::string& op, bool on);
  bool records(std::string_view op) const;
  std::uint32_t key_of(const Call& call);

  mutable std::mutex mutex_;  // of all that follows
  bool record_all_ = false, verbose_ = false, debug_ = false;
  std::vector<std::string> ops_;
  Print print_;
  TrafficByName traffic_;
  std::vector<Key> keys_;  // in the order in which they were first seen
  std::vector<Recorded> calls_;
};

}  // namespace capstan

#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/comms_log.hpp"
#include "core/comm/rendezvous.hpp"
#include "core/errors.hpp"

namespace capstan {

class DeviceLinks;

/// Another process of the run is gone, or does not come.
class PeerFault : public RuntimeFault {
 public:
  using RuntimeFault::RuntimeFault;
};

/// Collectives between the processes of a run. The engine's thread calls them, except where a function says otherwise.
///
/// Every collective is called by all ranks in the same order with the same name, which tells people where a run
/// stands: "step 120, gradient bucket 3". Sums are made in rank order in fp32, so that they depend on neither the way
/// in which tensors are cut nor on timing. When a rank is gone, calls another collective or does not come within the
/// time-out, RuntimeFault says which, and where every rank is.
class Communicator {
 public:
  struct Options {
    std::chrono::milliseconds timeout = std::chrono::minutes(30);  // the longest that one collective may take
    std::chrono::milliseconds arrival = std::chrono::minutes(5);   // the longest wait for all processes to appear
    std::optional<std::chrono::milliseconds> connection;           // to those that have appeared; none: `arrival`
    std::chrono::milliseconds watch_every = std::chrono::seconds(1);
    bool lingers = true;  // after a failure rank 0 stays until the others have read why, for 2 s at most
    // Asked now and then while a collective waits: true ends it. Null: nobody is asked. [a thread of the communicator]
    std::function<bool()> given_up;
  };

  /// The communicator of a single process: its collectives copy or do nothing.
  static std::shared_ptr<Communicator> alone();
  /// Connects the processes. Throws RuntimeFault. With several, SIGPIPE is ignored from then on where nothing handles
  /// it.
  static std::shared_ptr<Communicator> connect(const Rendezvous& rendezvous, const Options& options);
  /// A second communicator of the same processes, for one thread beside the engine's. Called by all ranks. Throws
  /// RuntimeFault.
  std::shared_ptr<Communicator> duplicate_for_thread(const std::string& purpose);
  /// From here on tensors that are not in host memory are sent over a link of their own, between devices of type
  /// `device`; without `links` through copies in host memory. Called by all ranks before the first collective on such
  /// tensors; where engines follow one another, all use the link of the first. Ranks that do not come within
  /// Options::connection end it. Throws PluginError, and RuntimeFault where the link is between devices of another
  /// type.
  void connect_devices(DeviceLinks* links, at::DeviceType device);
  /// Some of the ranks, this one among them, as a communicator that uses the connections of this one and must not
  /// outlive it. Every rank has a group, perhaps of its own, and all ranks make each call on their groups together:
  /// where a run stands is one place, whatever groups it has.
  std::unique_ptr<Communicator> group(const std::vector<int>& members);
  ~Communicator();
  Communicator(const Communicator&) = delete;

  int rank() const;
  int size() const;
  /// False for alone(), whose collectives have nobody to wait for.
  bool connected() const;
  int local_rank() const;  // among the ranks of this host
  /// Ranks on each host, which follow one another; size() where the launcher does not say, or hosts differ.
  int ranks_per_host() const;
  /// The number of each rank's host.
  const std::vector<int>& hosts() const;

  /// What the collectives so far sent and took. A collective that is made of others counts as one.
  CommsLog& log();
  /// The recorded calls; with `stragglers` compared over the ranks, all of which call it then and must have recorded
  /// the same calls: RuntimeFault otherwise. The comparison itself is not recorded.
  CommsSummary comms_summary(bool stragglers);

  /// The name of the calling function, for the log.
  using Caller = const char*;

  /// parts[r] holds the values of rank r: this rank's part is read, the others are filled. Parts are contiguous and may
  /// differ in size.
  void all_gather(const std::string& name, const std::vector<at::Tensor>& parts, Caller caller = __builtin_FUNCTION());
  /// Gathers several tensors in one call: pieces[i][r] is rank r's part of tensor i.
  void all_gather(const std::string& name, const std::vector<std::vector<at::Tensor>>& pieces,
                  Caller caller = __builtin_FUNCTION());
  /// parts[r] is what this rank adds to the sum that rank r gets. Returns the sum over ranks of parts[rank()], float32,
  /// in memory that the next call overwrites.
  at::Tensor reduce_scatter(const std::string& name, const std::vector<at::Tensor>& parts,
                            Caller caller = __builtin_FUNCTION());
  /// In: this rank's addend, cut into one part per rank. Out: the sum over ranks times `factor`. Rank r adds part r up
  /// in fp32, and sends it, rounded to the parts' dtype, to the others.
  void all_reduce(const std::string& name, const std::vector<at::Tensor>& parts, double factor = 1,
                  Caller caller = __builtin_FUNCTION());
  /// `values` become the sum over ranks. Each rank adds it up itself, in the values' own dtype; 16-bit values in fp32.
  void all_reduce_exact(const std::string& name, at::Tensor values, Caller caller = __builtin_FUNCTION());
  /// send[r] goes to rank r, receive[r] comes from it.
  void all_to_all(const std::string& name, const std::vector<at::Tensor>& send, const std::vector<at::Tensor>& receive,
                  Caller caller = __builtin_FUNCTION());
  void broadcast(const std::string& name, const std::vector<at::Tensor>& values, int root,
                 Caller caller = __builtin_FUNCTION());
  /// Returns the texts of all ranks, in rank order.
  std::vector<std::string> all_gather_text(const std::string& name, const std::string& text,
                                           Caller caller = __builtin_FUNCTION());

  /// While one lives, collectives that have not ended `patience` after its construction end with RuntimeFault.
  class Hurry {
   public:
    Hurry(Communicator& communicator, std::chrono::milliseconds patience);
    ~Hurry();
    Hurry(const Hurry&) = delete;

   private:
    Communicator& communicator_;
  };

  /// Tells the others why this rank stops, for their messages. [any thread]
  void tell_failure(const std::string& why) noexcept;
  /// The same, for what all ranks may have found: whether rank 0 stops with these words within `patience`, so that it
  /// alone needs to say them. False on rank 0. [any thread]
  bool tell_failure_as_rank_0(const std::string& why, std::chrono::milliseconds patience) noexcept;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace capstan

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "plugins/accelerators/cuda/nccl_api.hpp"

namespace capstan::accelerators {

/// An NCCL communicator that never blocks its thread (ncclConfig_t.blocking = 0): every call returns at once, and the
/// thread asks NCCL how far it is, so that it can give up. One thread at a time.
class NcclCommunicator {
 public:
  using Stop = std::function<bool()>;

  /// Meets the other ranks. Throws sdk::Error with NCCL's sentence, or where `given_up` returns true.
  NcclCommunicator(const NcclApi& api, const NcclId& id, int rank, int size, const Stop& given_up);
  /// Leaves in order with the others; where that takes longer than `kPatience`, or after a failure, aborts.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;

  struct Piece {
    int peer;
    void* memory;  // the device's
    std::size_t bytes;
  };
  /// Begins to send and to receive on a CUDA stream, as one group, so that no rank's order of sends and receives can
  /// make another one wait in vain. Throws sdk::Error after an abort.
  void start(const std::vector<Piece>& send, const std::vector<Piece>& receive, void* stream);
  /// Waits until NCCL has put into the stream what start() began, calls `queued`, and waits until `done` returns true.
  /// Returns false where `stop` returned true before; then, and where it throws NCCL's sentence, the communicator is
  /// aborted.
  bool wait(const std::function<void()>& queued, const std::function<bool()>& done, const Stop& stop);

 private:
  /// Whether NCCL has ended what it was asked for. Throws NCCL's sentence.
  bool settled() const;
  void check(int result) const;
  void abort() noexcept;
  bool wait_until(const std::function<bool()>& reached, const Stop& stop);

  const NcclApi& api_;
  void* raw_ = nullptr;  // null: aborted
};

}  // namespace capstan::accelerators

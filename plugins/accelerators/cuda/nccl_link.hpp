#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/sdk/accelerator.hpp"

namespace capstan::accelerators {

/// Messages that are under way over NCCL.
class NcclExchange {
 public:
  virtual ~NcclExchange() = default;
  /// As capstan_accelerator.wait. Throws with NCCL's own sentence when the link broke. [any thread]
  virtual bool wait() = 0;
  virtual void abort() noexcept = 0;  // [any thread]
  /// After wait(): by events of the link's stream, without the work that the caller had queued before.
  virtual double milliseconds() = 0;
};

/// NCCL between the current devices of several processes: LibTorch's own copy of it.
class NcclLink {
 public:
  /// An id for one link, as hexadecimal digits.
  static std::string new_id();
  /// Called by all ranks with the same id. Throws with NCCL's sentence, or where `given_up` returns true.
  static std::unique_ptr<NcclLink> connect(std::string_view id, int rank, int size, const sdk::GivenUp& given_up);

  virtual ~NcclLink() = default;
  /// On a stream of its own, behind what the caller's current stream has queued so far.
  virtual std::unique_ptr<NcclExchange> start(const std::vector<sdk::Message>& send,
                                              const std::vector<sdk::Message>& receive) = 0;
};

}  // namespace capstan::accelerators

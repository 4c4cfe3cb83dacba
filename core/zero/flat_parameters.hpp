#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/model/model.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

/// The compute copies of all trainable parameters in one piece of memory, in the partition's order, so that what a rank
/// has updated goes to the others, and arrives, where it belongs.
///
/// A parameter that owns its storage alone is moved in: its storage's pointer is exchanged, so that the parameter and
/// every view of it stay what they are. Other parameters have a second copy here.
class FlatParameters {
 public:
  struct Gathering {
    std::int64_t slice = 500'000'000;  // elements of one call at most
    bool by_broadcast = false;         // one call an owner
  };

  /// `parameters[i]`: of one dtype. `movable[i]`: nothing else lies in its storage.
  FlatParameters(const Partition& partition, const std::vector<at::Tensor>& parameters,
                 const std::vector<bool>& movable, const Gathering& gathering);

  /// Elements of parameter i in row-major order, one dimension.
  at::Tensor values(std::size_t i) const;
  bool moved(std::size_t i) const { return moved_[i]; }

  /// Sends this rank's parts and receives the others'. `name`: "step 12".
  void gather(Communicator& communicator, const std::string& name) const;
  /// The same call by call: the number of calls, the range [first, last) of calls that bring parameter i, and one call.
  /// Calls bring parameters in the order in which backward gives gradients.
  std::size_t calls() const { return calls_.size(); }
  std::pair<std::size_t, std::size_t> calls_of(std::size_t i) const;
  void gather(Communicator& communicator, const std::string& name, std::size_t call) const;

 private:
  struct Call {
    std::vector<std::vector<at::Tensor>> pieces;  // pieces[bucket][rank], the part of one rank
    std::size_t first_bucket = 0, last_bucket = 0;
  };
  void plan_calls(int ranks);

  const Partition& partition_;
  Gathering gathering_;
  std::vector<std::int64_t> numel_;
  std::vector<bool> moved_;
  at::Tensor flat_;
  std::vector<Call> calls_;
};

/// For each of a model's parameters: whether it fills its storage, alone.
std::vector<bool> alone_in_storage(const std::vector<NamedTensor>& parameters);

}  // namespace capstan

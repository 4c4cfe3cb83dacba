#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/zero/partition.hpp"

namespace capstan {

/// The compute copies of all trainable parameters in one piece of memory, in the partition's order, so that what a rank
/// has updated goes to the others, and arrives, where it belongs.
///
/// A parameter that owns its storage alone is moved in: its storage's pointer is exchanged, so that the parameter and
/// every view of it stay what they are. Of others there is a second copy here.
class FlatParameters {
 public:
  /// `parameters[i]`: of one dtype. `movable[i]`: nothing else lies in its storage.
  FlatParameters(const Partition& partition, const std::vector<at::Tensor>& parameters,
                 const std::vector<bool>& movable);

  /// Elements of parameter i in row-major order, one dimension.
  at::Tensor values(std::size_t i) const;
  bool moved(std::size_t i) const { return moved_[i]; }
  /// Sends this rank's parts and receives the others', at most `slice` elements a call; `broadcasts`: one call an
  /// owner.
  void gather(Communicator& communicator, const std::string& name, std::int64_t slice, bool broadcasts);

 private:
  const Partition& partition_;
  std::vector<std::int64_t> numel_;
  std::vector<bool> moved_;
  at::Tensor flat_;
};

/// Whether a parameter's storage holds it alone, from beginning to end.
bool owns_its_storage(const at::Tensor& parameter);

}  // namespace capstan

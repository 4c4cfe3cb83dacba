#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

/// Knows the values of parameters that are away: parts on other ranks, host memory, a disk.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  struct Request {
    std::size_t parameter;
    at::Tensor values;  // to be filled: all elements in row-major order, one dimension, of the parameter's dtype
  };
  using Ticket = std::uint64_t;

  /// Starts to fill the requested values, in the order of the calls. `what` names them in messages: "blocks.3.weight".
  /// When it throws, nothing will be filled.
  virtual Ticket fetch(const std::string& what, std::vector<Request> requests) = 0;
  /// Returns when the values of that fetch are filled. Throws, now and whenever it is asked again, where they will
  /// never be: nothing writes to them any more. Fetches that were made before the failure was noticed may be lost with
  /// it.
  virtual void wait(Ticket ticket) = 0;
};

}  // namespace capstan

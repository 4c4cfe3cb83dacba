#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/memory/parameter_source.hpp"
#include "core/memory/residency.hpp"

namespace capstan {

/// A trainable parameter with random values.
inline at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(); }

/// The parameters with the names "p0", "p1", ...
inline std::vector<ParameterResidency::Parameter> named(const std::vector<at::Tensor>& parameters) {
  std::vector<ParameterResidency::Parameter> list;
  for (std::size_t i = 0; i < parameters.size(); ++i) list.push_back({"p" + std::to_string(i), parameters[i]});
  return list;
}

/// Holds copies of the values, and gives them when asked: at once, or as late as it may.
class CopySource final : public ParameterSource {
 public:
  explicit CopySource(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) values.push_back(parameter.detach().contiguous().clone());
  }
  Ticket fetch(const std::string& what, std::vector<Request> requests) override {
    if (fails) throw std::runtime_error("rank 1 is gone");
    fetched.push_back(what);
    pending.push_back(std::move(requests));
    return pending.size();
  }
  void wait(Ticket ticket) override {
    if (ticket >= lost) {  // nothing comes of it, nor of what was asked for later
      pending[ticket - 1].clear();
      throw std::runtime_error("rank 1 was lost");
    }
    for (const Request& request : pending[ticket - 1]) {
      at::Tensor place = request.values;
      place.copy_(values[request.parameter].view({-1}));
    }
    pending[ticket - 1].clear();
  }
  std::vector<at::Tensor> values;
  std::vector<std::vector<Request>> pending;
  std::vector<std::string> fetched;
  bool fails = false;
  Ticket lost = std::numeric_limits<Ticket>::max();  // from there on waiting fails
};

}  // namespace capstan

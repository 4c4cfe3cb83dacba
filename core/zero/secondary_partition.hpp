#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/memory/parameter_source.hpp"

namespace capstan {

/// A second copy of parameters, spread over a few ranks that are near each other (ZeRO++, hpZ): what was gathered from
/// all ranks once is gathered from these until it changes. [any thread]
class SecondaryPartition {
 public:
  /// `ranks` follow one another, and divide the number of all; 1: there is no second copy.
  SecondaryPartition(int rank, int ranks) : ranks_(ranks), place_(rank % ranks), first_rank_(rank - rank % ranks) {}

  bool has(std::size_t parameter) const {
    const std::lock_guard lock(mutex_);
    return slices_.contains(parameter);
  }
  /// Keeps this rank's slices of whole parameters.
  void keep(const std::vector<ParameterSource::Request>& wholes);
  /// Fills whole parameters, each of which must have slices, in one call.
  void gather(Communicator& communicator, const std::string& name,
              const std::vector<ParameterSource::Request>& wholes) const;
  void forget() {
    const std::lock_guard lock(mutex_);
    slices_.clear();
  }

 private:
  /// The slice of a whole parameter that the rank at `place` keeps.
  at::Tensor slice(const at::Tensor& whole, int place) const;

  int ranks_, place_, first_rank_;
  mutable std::mutex mutex_;  // guards slices_
  std::unordered_map<std::size_t, at::Tensor> slices_;
};

}  // namespace capstan

#pragma once

#include <string_view>
#include <vector>

#include "capstan/sdk/optimizer.hpp"
#include "plugins/optimizers/onebit/compressed_all_reduce.hpp"

namespace capstan::optimizers {

/// Refuses and remarks on the parameters that OneBitAdam, OneBitLamb and ZeroOneAdam have in common.
void check_settings(std::string_view type, const Device& device, const sdk::Host& host, const sdk::Params& params);

/// What comm_backend_name selects: gloo knows host memory only.
CompressedAllReduce::Over carrier(const Device& device, const sdk::Params& params);

/// A group's numbers, as configured and scheduled.
struct OneBitGroup {
  explicit OneBitGroup(const sdk::Group& group);

  AdaptiveNumbers numbers(double grad_scale) const;
  StepRates rates() const;

  double lr, beta1, beta2, eps, weight_decay;
};

/// The numbers of every group, for one update.
template <class Group>
std::vector<AdaptiveNumbers> numbers_of(const std::vector<Group>& groups, double grad_scale) {
  std::vector<AdaptiveNumbers> numbers;
  for (const Group& group : groups) numbers.push_back(group.numbers(grad_scale));
  return numbers;
}

/// Throws when a parameter group gives `name` a value of its own: all ranks and groups change their ways together.
void require_same(const sdk::Step& step, const char* name, double value);

}  // namespace capstan::optimizers

#pragma once

#include <vector>

#include "capstan/sdk/elements/device_block.hpp"

namespace capstan::elements {

/// A rule with the slots that it is applied to, on a device.
template <class Rule>
struct RuleLaunch {
  const std::vector<DeviceUpdate<Rule>>& updates;
  void* stream;               // as host.stream() gives it
  double* scratch = nullptr;  // of a measuring rule: memory of the device for its sums of each chunk of all updates
  double* sums = nullptr;     // of a measuring rule: gets the sums of each update
};

}  // namespace capstan::elements

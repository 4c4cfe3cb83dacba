// The kernels of elements.hpp for a device. Without the SDK, which nvcc would read once for each kind of device.
#pragma once

#include "capstan/sdk/elements/device_sweep.cuh"
#include "capstan/sdk/elements/float_rules.hpp"

#define CAPSTAN_RULE_KERNEL(Rule)                                                           \
  const char* launch_##Rule(const std::vector<DeviceUpdate<Rule>>& updates, void* stream) { \
    return sweep<Rule::kStates, Rule>(updates, stream);                                     \
  }
#define CAPSTAN_ONCE 0

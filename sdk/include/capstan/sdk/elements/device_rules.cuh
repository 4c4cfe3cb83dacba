// The kernels of elements.hpp for a device. Without the SDK, which nvcc would read once for each kind of device.
#pragma once

#include "capstan/sdk/elements/device_launch.hpp"
#include "capstan/sdk/elements/device_measure.cuh"
#include "capstan/sdk/elements/float_rules.hpp"
#include "capstan/sdk/elements/measure_rule.hpp"

#define CAPSTAN_RULE_KERNEL(Rule) \
  const char* launch_##Rule(const RuleLaunch<Rule>& launch) { return launch_rule(launch); }
#define CAPSTAN_ONCE 0

namespace capstan::elements {

template <class Rule>
const char* launch_rule(const RuleLaunch<Rule>& launch) {
  if constexpr (MeasureRule<Rule>) {
    return measure(launch.updates, launch.scratch, launch.sums, launch.stream);
  } else {
    return sweep(launch.updates, launch.stream);
  }
}

}  // namespace capstan::elements

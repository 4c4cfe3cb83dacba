#pragma once

#include <cstdint>
#include <vector>

#include "core/memory/offload_device.hpp"
#include "core/monitor/monitor_host.hpp"

namespace capstan {

/// Adds what a step read from stores of offload and wrote to them, in MB, and how long it waited for them, in ms, at x
/// samples: from what the stores have counted when it began and by now. Nothing for a run that offloads nothing.
void add_offload_metrics(std::vector<Metric>& metrics, const OffloadTraffic& before, const OffloadTraffic& now,
                         std::int64_t samples);

}  // namespace capstan

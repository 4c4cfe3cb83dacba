#pragma once

#include <c10/core/Device.h>

namespace capstan::profiler {

/// Floating-point operations a second that a large matrix product in float32 reaches on the device that trains: what a
/// model can hope for. Takes a fraction of a second.
double measured_peak_flops(c10::Device device);

}  // namespace capstan::profiler

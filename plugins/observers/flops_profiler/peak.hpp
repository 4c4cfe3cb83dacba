#pragma once

namespace capstan::profiler {

/// Floating-point operations a second that a large matrix product in float32 reaches on this machine's CPU: what a
/// model can hope for. Takes a fraction of a second.
double measured_peak_flops();

}  // namespace capstan::profiler

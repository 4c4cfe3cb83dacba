#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

/// A device that every machine has: memory that host code cannot touch, streams whose order is checked, copies that are
/// late until somebody waits for them. It computes by the CPU's kernels. Functions may be called by any thread.
namespace capstan::emulated {

constexpr int kDevices = 4;  // that a process sees
constexpr int kStreams = 8;  // of a device; 0 is the default stream, the last one is for links

/// A fault that the device has found: it is printed with the device's name, and ends the process where
/// CAPSTAN_EMULATED_ABORT=1.
void report_fault(const char* kind, const char* text);
/// "<kind>: <text>" of the first one, for the process's life; null where there was none.
const char* first_fault();

/// One lock for all of the device: operators of several threads are rare in tests, and order is what they are about.
std::recursive_mutex& device_mutex();

/// The calling thread's current device, as LibTorch's guards set it.
int current_device();
int exchange_device(int device);

}  // namespace capstan::emulated

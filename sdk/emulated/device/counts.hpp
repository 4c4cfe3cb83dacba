#pragma once

#include <cstdint>
#include <string>

namespace capstan::emulated {

/// Counts of the device's work so far. The process prints them at its end with CAPSTAN_EMULATED_STATS=1, and with
/// CAPSTAN_EMULATED_STATS=operators also how often each operator ran.
struct Counts {
  std::uint64_t operators = 0;  // of LibTorch
  std::uint64_t kernels = 0;    // raw launches
  std::uint64_t waits = 0;      // of the host for the device
  std::uint64_t blocking_copies = 0;
  std::uint64_t bytes_to_device = 0, bytes_to_host = 0;
  std::uint64_t faults = 0;
};

/// Guarded by device_mutex().
Counts& counts();

void note_wait(const char* why);
void note_operator(const std::string& name);

}  // namespace capstan::emulated

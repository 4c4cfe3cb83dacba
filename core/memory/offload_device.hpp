#pragma once

#include <cstdint>

namespace capstan {

/// What went to and came from stores of offload since the run began.
struct OffloadTraffic {
  std::uint64_t read_bytes = 0, written_bytes = 0;
  double wait_seconds = 0;
  std::uint64_t transfers = 0;
};

}  // namespace capstan

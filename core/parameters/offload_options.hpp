#pragma once

#include <cstdint>
#include <memory>

#include "core/memory/offload_device.hpp"
#include "core/zero/offload_plan.hpp"

namespace capstan {

/// Which tensors of a parameter store are kept on stores between their uses, and how they come and go.
struct OffloadOptions {
  std::shared_ptr<OffloadDevice> states;      // keeps the optimizer's states and masters; null: they are in memory
  std::shared_ptr<OffloadDevice> parameters;  // stage 3: keeps this rank's parts of parameters; null likewise
  double ratio = 1;                           // the share of sub-groups whose states are on the store
  std::int64_t max_in_memory = 0;             // elements of parameters that stay in memory beside persistent ones
  std::int64_t buffer_count = 4;              // staging takes at most so many times the largest sub-group in fp32
  std::int64_t slots = kTileSlots;            // tiles in memory at a time
  bool read_ahead = true, write_behind = true;
  bool may_cut = true;  // the optimizer updates any run of elements by itself
};

}  // namespace capstan

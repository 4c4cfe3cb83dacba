#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/engine/engine.hpp"
#include "core/memory/accelerator.hpp"
#include "core/parameters/parameter_groups.hpp"

namespace capstan {

/// The lines of `steps_per_print`: step, skipped, learning rates, momenta; and the throughput. [engine]
class ProgressReport {
 public:
  ProgressReport(const Config& config, bool momentum_is_momentum);

  void step_begins();
  /// Called after a step and its schedule: returns the lines that are due, or "".
  std::string step_ends(const Progress& progress, std::int64_t micro_step, const ParameterGroups& groups,
                        const Accelerator& accelerator);
  /// The state line alone, for the report at initialisation.
  std::string state_line(const Progress& progress, const ParameterGroups& groups) const;

 private:
  using Clock = std::chrono::steady_clock;
  std::string throughput_line(std::int64_t global_step, std::int64_t micro_step, const DeviceMemory& device) const;

  std::optional<std::int64_t> every_;
  bool throughput_;
  bool momentum_is_momentum_;  // SGD and RMSprop show `momentum`, the others `betas`
  std::int64_t batch_;
  Clock::time_point begun_;
  std::int64_t steps_ = 0;  // steps of this process
  double last_seconds_ = 0, total_seconds_ = 0;
};

/// {resident, peak} bytes of this process.
struct HostMemory {
  std::uint64_t resident = 0, peak = 0, used = 0, total = 0;  // used, total: of the machine
};
HostMemory host_memory();

/// "after forward | MA 1.20 GB Max_MA 3.40 GB ..." for `memory_breakdown`: of the device, or of this process on the
/// host.
std::string memory_line(const std::string& label, const DeviceMemory& device);

}  // namespace capstan

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

struct DataSamplingConfig {
  bool enabled = false;
  std::int64_t num_epochs = 1000;
  bool operator==(const DataSamplingConfig&) const = default;
};

/// data_efficiency. A part is on when every `enabled` on its path is. Its samplers and observers are plugins, which
/// read their own sections.
struct DataEfficiencyConfig {
  bool enabled = false;
  std::int64_t seed = 1234;
  DataSamplingConfig data_sampling;
  bool operator==(const DataEfficiencyConfig&) const = default;
};

DataEfficiencyConfig read_data_efficiency(const SectionValues& section);

}  // namespace capstan

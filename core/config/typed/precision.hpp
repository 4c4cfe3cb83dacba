#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/typed/section_values.hpp"

namespace capstan {

struct TorchAutocastConfig {
  bool enabled = false;
  std::string dtype;  // empty: the model's
  std::vector<std::string> lower_precision_safe_modules;
  bool operator==(const TorchAutocastConfig&) const = default;
};

TorchAutocastConfig read_torch_autocast(const SectionValues& section);

}  // namespace capstan

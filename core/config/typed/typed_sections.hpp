#pragma once

#include "core/config/typed/config.hpp"

namespace capstan {

/// Fills every typed section of a configuration from the document's root.
void read_typed_sections(const SectionValues& root, Config& config);

}  // namespace capstan

#pragma once

#include "core/config/resolve/effective.hpp"
#include "core/text/problem.hpp"

namespace capstan {

/// Rules inside one section: what must be given when it is on, and which of its values go together.
void check_data_rules(const Effective& values, Problems& problems);         // data_efficiency, curriculum_learning
void check_compression_rules(const Effective& values, Problems& problems);  // compression_training, eigenvalue
/// True when elasticity is on and its section is sound.
bool check_elasticity_rules(const Effective& values, Problems& problems);
/// Folders of NVMe offload: an error where nothing could be written, a notice while a file is only checked.
void check_storage(const Effective& values, bool check_only, Problems& problems);
void check_other_sections(const Effective& values, Problems& problems);

}  // namespace capstan

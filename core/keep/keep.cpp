#include "core/keep/keep.hpp"

namespace capstan {

Keep::Keep(EngineParts& parts, KeptSteps& steps)
    : parts_(parts),
      steps_(steps),
      wants_teacher_(parts.config.compression.layer_reduction.enabled),
      snapshots_(parts.config.run.elastic) {}

}  // namespace capstan

#pragma once

#include <cstdint>
#include <optional>

#include "core/checkpoint/checkpoint_name.hpp"
#include "core/comm/communicator.hpp"
#include "core/elastic/world.hpp"

namespace capstan {

/// Notes a checkpoint that an elastic run has saved, with the step that it is of: what the run goes on from where no
/// snapshot can be used. The note goes where the snapshots are, and with them. Where memory is full, the older note
/// stays.
void note_saved(const WorldFolder& folder, std::int64_t step, const CheckpointName& checkpoint);

struct SavedStep {
  std::int64_t step = 0;
  CheckpointName checkpoint;
};
/// The newest checkpoint that the folder of any rank tells of, the same on all ranks. Called by all of them.
std::optional<SavedStep> last_saved(const WorldFolder& folder, Communicator& ranks);

}  // namespace capstan

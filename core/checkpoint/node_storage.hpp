#pragma once

#include <filesystem>
#include <string>

#include "core/comm/communicator.hpp"

namespace capstan {

/// Before a checkpoint is read whose parts lie on the nodes that wrote them: finds the tag, `tag` or else the newest
/// that any node's `latest` names, and gives each node what it lacks of the files, from the lowest rank that has them.
/// Called by all ranks; the rank with local rank 0 writes for its node. Returns the tag. Throws RuntimeFault, the same
/// on all ranks, when no node has the checkpoint or nodes have different ones under the tag.
std::string complete_checkpoint(const std::filesystem::path& dir, const std::string& tag, Communicator& communicator);

}  // namespace capstan

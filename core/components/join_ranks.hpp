#pragma once

#include <cstdint>

#include "core/comm/communicator.hpp"
#include "core/config/config.hpp"
#include "core/model/model.hpp"

namespace capstan {

/// Whether each process holds its shards alone: several do at every stage, one where parameters are offloaded.
bool is_sharded(const Config& config, const Communicator& communicator);

/// Whether each process holds parts of parameters alone: ZeRO stage 3.
bool holds_parts_only(const Config& config, const Communicator& communicator);

/// Checks that all ranks are about to train the same, and gives all of them rank 0's values. Throws ConfigError for
/// what several processes cannot do, RuntimeFault when ranks differ.
Model join_ranks(Model model, const Config& config, Communicator& communicator);

}  // namespace capstan

#pragma once

#include "core/comm/communicator.hpp"
#include "core/comm/rendezvous.hpp"

namespace capstan {

/// How long processes wait for each other: CAPSTAN_COLLECTIVE_TIMEOUT seconds, for a collective and for all to appear,
/// where that is set. Throws RuntimeFault where it is no number of seconds.
Communicator::Options time_limits(const Environment& environment);

}  // namespace capstan

#pragma once

#include <chrono>
#include <memory>

#include "core/comm/transport.hpp"

namespace capstan {

/// `network`, but processes of one host copy messages straight from each other's memory: one copy in place of TCP's
/// several. Called by all processes. Throws RuntimeFault when they do not all answer within `patience`.
std::shared_ptr<Transport> with_host_memory(std::shared_ptr<Transport> network, int rank, int size,
                                            std::chrono::milliseconds patience);

}  // namespace capstan

#pragma once

#include <chrono>

namespace capstan {

/// From here on a read or write fails that takes longer than `patience` on a connection of this process to that port of
/// another one, for connections that a library makes and does not show. [any thread]
void limit_waits_for_port(int port, std::chrono::milliseconds patience);

}  // namespace capstan

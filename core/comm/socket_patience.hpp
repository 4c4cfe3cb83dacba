#pragma once

#include <chrono>
#include <string>

namespace capstan {

/// From here on a read or write fails that takes longer than `patience` on a connection of this process to that port of
/// another one, for connections that a library makes and does not show. [any thread]
void limit_waits_for_port(int port, std::chrono::milliseconds patience);

/// Whether something listens at that port of an address: a connection is made within `patience`, and closed.
bool listens_at(const std::string& address, int port, std::chrono::milliseconds patience);

/// From here on the kernel sends what the other end of a TCP connection has not received again each second, for all
/// connections that this process has. Otherwise it doubles the time between attempts, and a connection stands still
/// after a cut of the network about as long as the cut has taken. Has no effect before Linux 6.15. [any thread]
void retransmit_often();
/// For one connection.
void retransmit_often(int socket);

}  // namespace capstan

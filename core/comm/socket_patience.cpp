#include "core/comm/socket_patience.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace capstan {
namespace {

/// 0 where that is not a connection.
int peer_port(int descriptor) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return 0;
  if (peer.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&peer)->sin_port);
  if (peer.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_port);
  return 0;
}

}  // namespace

void limit_waits_for_port(int port, std::chrono::milliseconds patience) {
  const timeval time{patience.count() / 1000, (patience.count() % 1000) * 1000};
  std::error_code gone;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    const int descriptor = std::atoi(entry->path().filename().c_str());
    if (peer_port(descriptor) != port) continue;
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  }
}

}  // namespace capstan

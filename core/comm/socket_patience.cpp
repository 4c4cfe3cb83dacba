#include "core/comm/socket_patience.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
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

void for_each_descriptor(const std::function<void(int)>& use) {
  std::error_code gone;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    use(std::atoi(entry->path().filename().c_str()));
  }
}

/// TCP_RTO_MAX_MS of Linux 6.15, which the headers of older systems lack.
constexpr int kGreatestRetransmissionTime = 44;

}  // namespace

void limit_waits_for_port(int port, std::chrono::milliseconds patience) {
  const timeval time{patience.count() / 1000, (patience.count() % 1000) * 1000};
  for_each_descriptor([&](int descriptor) {
    if (peer_port(descriptor) != port) return;
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  });
}

bool listens_at(const std::string& address, int port, std::chrono::milliseconds patience) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  bool listens = false;
  for (const addrinfo* one = found; one != nullptr && !listens; one = one->ai_next) {
    const int descriptor = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) continue;
    listens = connect(descriptor, one->ai_addr, one->ai_addrlen) == 0;
    pollfd waits{descriptor, POLLOUT, 0};
    if (!listens && errno == EINPROGRESS && poll(&waits, 1, static_cast<int>(patience.count())) == 1) {
      int error = 0;
      socklen_t length = sizeof error;
      listens = getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
    }
    close(descriptor);
  }
  freeaddrinfo(found);
  return listens;
}

void retransmit_often(int socket) {
  const int milliseconds = 1000;  // the least that Linux takes
  setsockopt(socket, IPPROTO_TCP, kGreatestRetransmissionTime, &milliseconds, sizeof milliseconds);
}

void retransmit_often() {
  for_each_descriptor([](int descriptor) {
    if (peer_port(descriptor) != 0) retransmit_often(descriptor);
  });
}

}  // namespace capstan

#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace capstan {

/// A port of this host that nobody listens at now, of those that the system gives nobody who asks for any: whoever runs
/// beside does not take it meanwhile.
inline int free_port() {
  static int next = getpid() % 10'000;
  for (int attempt = 0; attempt < 10'000; ++attempt) {
    const int port = 20'000 + next++ % 10'000;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const int number = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool free = bind(number, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(number);
    if (free) return port;
  }
  return 0;
}

}  // namespace capstan

#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace capstan {

/// Carries connections to a port, and resets them, as a firewall does that forgets them.
class Firewall {
 public:
  explicit Firewall(int to) : to_(to), listener_(socket(AF_INET, SOCK_STREAM, 0)), thread_([this] { serve(); }) {}
  ~Firewall() {
    ends_ = true;
    thread_.join();
    reset();
    close(listener_);
  }
  Firewall(const Firewall&) = delete;
  int port() const { return port_; }
  /// Also takes no more connections.
  void reset() {
    refuses_ = true;
    const std::lock_guard lock(mutex_);
    for (const auto& [one, other] : pairs_) {
      for (const int each : {one, other}) {
        const linger now{1, 0};  // close() sends a reset
        setsockopt(each, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(each);
      }
    }
    pairs_.clear();
  }

 private:
  static sockaddr_in local(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  static bool carry(int from, int to) {
    char bytes[4096];
    const ssize_t count = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN;
    return count > 0 && send(to, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL) == count;
  }
  void accept_one() {
    const int one = accept(listener_, nullptr, nullptr), other = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = local(to_);
    if (refuses_ || connect(other, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      close(one);
      close(other);
      return;
    }
    pairs_.emplace_back(one, other);
  }
  void serve() {
    while (!ends_) {
      std::vector<pollfd> all{{listener_, POLLIN, 0}};
      {
        const std::lock_guard lock(mutex_);
        for (const auto& [one, other] : pairs_) all.insert(all.end(), {{one, POLLIN, 0}, {other, POLLIN, 0}});
      }
      poll(all.data(), all.size(), 5);
      const std::lock_guard lock(mutex_);
      if ((all[0].revents & POLLIN) != 0) accept_one();
      std::erase_if(pairs_, [](const auto& pair) {
        const bool open = carry(pair.first, pair.second) && carry(pair.second, pair.first);
        if (!open) {
          close(pair.first);
          close(pair.second);
        }
        return !open;
      });
    }
  }
  int bind_any() {
    sockaddr_in address = local(0);
    socklen_t length = sizeof address;
    bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(listener_, 16);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    return ntohs(address.sin_port);
  }

  const int to_, listener_;
  const int port_ = bind_any();
  std::atomic<bool> ends_ = false, refuses_ = false;
  std::mutex mutex_;
  std::vector<std::pair<int, int>> pairs_;
  std::thread thread_;
};

}  // namespace capstan

#include "accelerator/link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <random>
#include <utility>

#include "capstan/sdk/aten.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"

namespace capstan::emulated {
namespace {

constexpr int kLinkStream = kStreams - 1;
constexpr std::chrono::milliseconds kLook{20};
/// An exchange is late by up to this much, so that whoever does not wait for it meets values that are not there yet.
constexpr int kLateMicroseconds = 500;

sockaddr_un address_of(const std::string& id, std::uint32_t rank, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "capstan-emulated-" + id + "-" + std::to_string(rank);
  std::copy(name.begin(), name.end(), address.sun_path + 1);  // abstract: it vanishes with the process
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

int new_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

int connect_to(const std::string& id, std::uint32_t rank, std::uint32_t peer, const sdk::GivenUp& given_up) {
  socklen_t size = 0;
  const sockaddr_un there = address_of(id, peer, size);
  for (;;) {
    const int made = new_socket();
    const bool connected = connect(made, reinterpret_cast<const sockaddr*>(&there), size) == 0;
    if (connected && send(made, &rank, sizeof rank, MSG_NOSIGNAL) == sizeof rank) return made;
    close(made);
    if (given_up()) {
      throw sdk::Error("the link to rank " + std::to_string(peer) + ": the process does not answer.");
    }
    std::this_thread::sleep_for(kLook);
  }
}

/// The socket of the next higher rank that connects, and the rank.
std::pair<int, std::uint32_t> accept_one(int listener, std::uint32_t size, const sdk::GivenUp& given_up) {
  pollfd ready{listener, POLLIN, 0};
  while (poll(&ready, 1, static_cast<int>(kLook.count())) <= 0) {
    if (given_up()) throw sdk::Error("the links: not all processes of the group have come.");
  }
  const int made = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  std::uint32_t peer = 0;
  if (made < 0 || recv(made, &peer, sizeof peer, MSG_WAITALL) != sizeof peer || peer >= size) {
    throw sdk::Error("the links: a process that connected is gone.");
  }
  return {made, peer};
}

}  // namespace

Exchange::Exchange(const std::vector<int>& sockets, const std::vector<sdk::Message>& send,
                   const std::vector<sdk::Message>& receive, int device) {
  if (current_device() != device) {
    report_fault("device",
                 "an exchange is started by a thread that has another device; bind_thread() makes it the link's");
  }
  std::vector<Queue> out(sockets.size()), in(sockets.size());
  Queue own_out, own_in;
  for (const sdk::Message& message : send) add(sockets, message, /*write=*/false, out, own_out);
  for (const sdk::Message& message : receive) add(sockets, message, /*write=*/true, in, own_in);
  Event ready;
  record(ready, device, current_stream(device));
  block(ready, device, kLinkStream);
  launch("link exchange", device, kLinkStream, accesses_);
  for (std::size_t i = 0; i < std::min(own_out.size(), own_in.size()); ++i) {
    std::copy_n(own_out[i].at, own_out[i].left, own_in[i].at);
  }
  record(event_, device, kLinkStream);
  worker_ =
      std::thread([this, out = std::move(out), in = std::move(in)]() mutable { run(std::move(out), std::move(in)); });
}

Exchange::~Exchange() {
  aborted_ = true;
  worker_.join();
  // Nothing of the exchange uses the memory any more, whether or not somebody waited.
  if (!waited_) emulated::wait(event_, "link exchange that was given up");
}

void Exchange::add(const std::vector<int>& sockets, const sdk::Message& message, bool write, std::vector<Queue>& to,
                   Queue& own) {
  const at::Tensor& tensor = sdk::borrow(message.values);
  held_.push_back(tensor);
  if (tensor.nbytes() == 0) return;
  auto* host = static_cast<char*>(host_view(tensor.const_data_ptr()));
  if (host == nullptr) throw sdk::Error("a message of the link is not in the memory of the device.");
  accesses_.push_back({tensor.const_data_ptr(), write, tensor.nbytes()});
  const auto peer = static_cast<std::size_t>(message.peer);
  (sockets[peer] < 0 ? own : to[peer]).push_back({sockets[peer], host, tensor.nbytes()});
}

/// Sends or receives as many bytes as the sockets take without waiting. Returns false where a peer is gone.
bool Exchange::move(std::vector<Queue>& queues, bool sending) {
  for (Queue& queue : queues) {
    if (queue.empty()) continue;
    Part& part = queue.front();
    const ssize_t moved = sending ? send(part.socket, part.at, part.left, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : recv(part.socket, part.at, part.left, MSG_DONTWAIT);
    if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
    if (moved < 0) continue;
    part.at += moved;
    part.left -= static_cast<std::size_t>(moved);
    if (part.left == 0) queue.erase(queue.begin());
  }
  return true;
}

void Exchange::run(std::vector<Queue> out, std::vector<Queue> in) {
  const auto begun = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::microseconds(std::random_device{}() % kLateMicroseconds));
  bool whole = true;
  while (whole && !aborted_) {
    std::vector<pollfd> waiting;
    for (const Queue& queue : out) {
      if (!queue.empty()) waiting.push_back({queue.front().socket, POLLOUT, 0});
    }
    for (const Queue& queue : in) {
      if (!queue.empty()) waiting.push_back({queue.front().socket, POLLIN, 0});
    }
    if (waiting.empty()) break;
    poll(waiting.data(), waiting.size(), static_cast<int>(kLook.count()));
    whole = move(out, true) && move(in, false);
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  broken_ = !whole;
  milliseconds_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
  changed_.notify_all();
}

bool Exchange::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
  if (broken_ && !aborted_) throw sdk::Error("the link broke: a process of the group is gone.");
  emulated::wait(event_, "link exchange");
  waited_ = true;
  return !aborted_;
}

Link::Link(const std::string& id, std::uint32_t rank, std::uint32_t size, int device, const sdk::GivenUp& given_up)
    : sockets_(size, -1), device_(device) {
  if (id.find('.') == std::string::npos || id.find_first_not_of("0123456789.") != std::string::npos) {
    throw sdk::Error("the links: expected an id of link_id, got '" + id + "'.");
  }
  socklen_t length = 0;
  const sockaddr_un own = address_of(id, rank, length);
  const int listener = new_socket();
  try {
    if (bind(listener, reinterpret_cast<const sockaddr*>(&own), length) != 0 || listen(listener, SOMAXCONN) != 0) {
      throw sdk::Error("the links: no socket to listen at.");
    }
    for (std::uint32_t peer = 0; peer < rank; ++peer) sockets_[peer] = connect_to(id, rank, peer, given_up);
    for (std::uint32_t k = rank + 1; k < size; ++k) {
      const auto [made, peer] = accept_one(listener, size, given_up);
      sockets_[peer] = made;
    }
  } catch (...) {
    close(listener);
    for (const int one : sockets_) {
      if (one >= 0) close(one);
    }
    throw;
  }
  close(listener);
}

Link::~Link() {
  for (const int one : sockets_) {
    if (one >= 0) close(one);
  }
}

}  // namespace capstan::emulated

#include "core/comm/neighbour.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace capstan {
namespace {

/// Read at once: between them an abort is noticed.
constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;

}  // namespace

Neighbour::~Neighbour() { close(socket_); }

void Neighbour::lost(const std::string& why) const { throw PeerLost(rank_, why); }

void Neighbour::disconnect() { shutdown(socket_, SHUT_RDWR); }

bool Neighbour::alive() const {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, process_, 0));
  if (process < 0) return false;
  pollfd ended{process, POLLIN, 0};
  const bool there = poll(&ended, 1, 0) == 0;
  close(process);
  return there;
}

bool Neighbour::send(const Packet& packet, const void* values) {
  std::array<iovec, 2> parts{{{const_cast<Packet*>(&packet), sizeof packet},
                              {const_cast<void*>(values), values ? static_cast<std::size_t>(packet.bytes) : 0}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  while (sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno != EINTR) lost("its connection on this host: " + std::generic_category().message(errno));
  }
  return true;
}

std::optional<Neighbour::Arrived> Neighbour::receive() {
  Arrived arrived{};
  std::array<std::byte, kShort> values;
  std::array<iovec, 2> parts{{{&arrived.packet, sizeof arrived.packet}, {values.data(), values.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t bytes;
  while ((bytes = recvmsg(socket_, &message, MSG_DONTWAIT)) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    if (errno != EINTR) lost("its connection on this host: " + std::generic_category().message(errno));
  }
  if (bytes == 0) lost("it closed its connection on this host");
  const std::size_t expected =
      sizeof(Packet) + (arrived.packet.kind == Packet::Kind::kValues ? arrived.packet.bytes : 0);
  if (static_cast<std::size_t>(bytes) < sizeof(Packet) || static_cast<std::size_t>(bytes) != expected)
    lost("its connection on this host brought a packet of " + std::to_string(bytes) + " bytes");
  arrived.values.assign(values.begin(), values.begin() + (expected - sizeof(Packet)));
  return arrived;
}

bool Neighbour::take(const Packet& offer, void* to, const std::atomic<bool>& aborted) {
  for (std::uint64_t done = 0; done < offer.bytes;) {
    if (aborted) return false;
    const auto bytes = static_cast<std::size_t>(std::min(offer.bytes - done, kPiece));
    iovec here{static_cast<std::byte*>(to) + done, bytes};
    iovec there{reinterpret_cast<void*>(offer.address + done), bytes};
    const ssize_t copied = process_vm_readv(process_, &here, 1, &there, 1, 0);
    if (copied <= 0) lost("its memory cannot be read: " + std::generic_category().message(copied < 0 ? errno : EFAULT));
    done += static_cast<std::uint64_t>(copied);
  }
  // Memory whose owner has given up may hold something else by now; it disconnects before it lets go of it.
  pollfd connection{socket_, POLLRDHUP, 0};
  if (poll(&connection, 1, 0) > 0) lost("it closed its connection on this host");
  return true;
}

}  // namespace capstan

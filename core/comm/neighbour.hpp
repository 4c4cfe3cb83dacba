#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/comm/transport.hpp"

namespace capstan {

/// Tells messages of one peer apart: the exchange's tag, and which of its messages to this peer.
using MessageKey = std::pair<std::uint32_t, std::uint32_t>;

/// What processes of one host tell each other about a message.
struct Packet {
  enum class Kind : std::uint32_t {
    kOffer,   // the message can be read at `address` until it is taken
    kValues,  // the message itself follows, where it is short
    kTaken    // the message was read
  };
  Kind kind;
  MessageKey key;
  std::uint64_t bytes;
  std::uint64_t address;  // in the sender's memory
};

/// Another process of this host whose memory this one can read (process_vm_readv), and a socket between the two. One
/// thread at a time uses it; what throws is PeerLost.
class Neighbour {
 public:
  /// Longer messages are read where they are.
  static constexpr std::size_t kShort = 4096;

  struct Arrived {
    Packet packet;
    std::vector<std::byte> values;
  };

  Neighbour(int rank, int socket, int process) : rank_(rank), socket_(socket), process_(process) {}
  ~Neighbour();
  Neighbour(const Neighbour&) = delete;

  int rank() const { return rank_; }
  int socket() const { return socket_; }

  /// `values`: of a kValues. False while the socket is full.
  bool send(const Packet& packet, const void* values);
  /// Empty while nothing is there.
  std::optional<Arrived> receive();
  /// Copies what was offered. False when `aborted` before it ended.
  bool take(const Packet& offer, void* to, const std::atomic<bool>& aborted);
  /// A connection that broke: whether its process is there all the same, and has given up only.
  bool alive() const;
  /// Offers of this process are void from here on: the other sees it before it believes what it has read.
  void disconnect();

 private:
  [[noreturn]] void lost(const std::string& why) const;

  int rank_, socket_, process_;
};

/// The processes of `texts` whose memory this one can read, and that can read this one's. Called by all of them. Empty
/// where CAPSTAN_HOST_MEMORY is "off". Throws RuntimeFault.
std::vector<std::unique_ptr<Neighbour>> meet_neighbours(Transport& texts, int rank, int size,
                                                        std::chrono::milliseconds patience);

}  // namespace capstan

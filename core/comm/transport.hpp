#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/comm/rendezvous.hpp"

namespace capstan {

/// A contiguous tensor to send to, or to fill from, another process.
struct Message {
  int peer;
  at::Tensor values;
};

/// The connection to a process broke.
class PeerLost : public std::runtime_error {
 public:
  PeerLost(int peer, const std::string& reason) : std::runtime_error(reason), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

/// Messages that are under way.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Blocks until all have arrived and all may be overwritten; false when aborted. Throws PeerLost.
  virtual bool wait() = 0;
  /// Ends wait(). [any thread]
  virtual void abort() = 0;
  /// After wait(): how long the exchange took on the devices, without the work that was queued there before it. None:
  /// only the host's clock knows.
  virtual std::optional<double> milliseconds() const { return std::nullopt; }
};

/// Messages between the processes of a run, and short texts that all of them can read.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Starts everything at once. Messages meet where the tags are equal. `send` and `receive` must outlive the exchange.
  virtual std::unique_ptr<Exchange> start(std::uint32_t tag, const std::vector<Message>& send,
                                          const std::vector<Message>& receive) = 0;

  virtual void publish(const std::string& key, const std::string& text) = 0;
  /// Waits for it. Throws RuntimeFault after `patience`.
  virtual std::string read(const std::string& key, std::chrono::milliseconds patience) = 0;
  /// A second connection of the same processes, whose messages and texts never meet these, for another thread. Called
  /// by all of them. Throws RuntimeFault.
  virtual std::shared_ptr<Transport> duplicate_for_thread(const std::string& purpose) = 0;
  /// A second view of the texts, for another thread.
  virtual std::shared_ptr<Transport> for_thread() = 0;
};

/// Connects all processes over TCP: LibTorch's c10d with gloo. Throws RuntimeFault when they do not all appear within
/// `patience`, or when those that have appeared do not connect within `connection`.
std::shared_ptr<Transport> connect_gloo(const Rendezvous& rendezvous, std::chrono::milliseconds patience,
                                        std::chrono::milliseconds connection);

}  // namespace capstan

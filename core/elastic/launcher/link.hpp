#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/elastic/launcher/address.hpp"
#include "core/elastic/launcher/sealed_lines.hpp"
#include "core/text/json.hpp"

namespace capstan {

/// A connection between two launchers, over which JSON values travel, a line each, proven by a secret (SealedLines). It
/// never waits, and it speaks now and then, so that the other end knows that this host is there. [one thread]
class ElasticLink {
 public:
  struct Socket;
  ElasticLink(std::unique_ptr<Socket> socket, SealedLines::Side side, const std::string& secret);
  ~ElasticLink();
  ElasticLink(const ElasticLink&) = delete;
  /// Null where nobody answers there within `patience`; `why` says how.
  static std::unique_ptr<ElasticLink> call(const LauncherAddress& address, const std::string& secret,
                                           std::chrono::milliseconds patience, std::string& why);

  int descriptor() const;
  void send(const Json& message);
  /// The next message that has come, from an end that has proven itself; nothing where none has. What is not a message
  /// closes the connection.
  std::optional<Json> receive();
  /// Sends what could not be sent yet, and a sign of life where one is due.
  void keep_alive();
  /// The other end has gone: its kernel says so, or it has sent what is not a message.
  bool is_closed() const { return closed_; }
  /// Nothing has come for so long that the other host counts as lost, or a caller has not proven itself in its time.
  bool is_silent() const;
  /// The other end has proven that it has the secret.
  bool is_proven() const { return proven_; }
  /// The other end has closed the connection before it has proven anything, and has sent nothing of another protocol.
  bool was_hung_up_on() const { return closed_ && !given_up_ && !proven_; }
  bool has_other_secret() const { return lines_.state() == SealedLines::State::kOtherSecret; }
  /// The time since the connection was made.
  std::chrono::milliseconds age() const;
  /// Closes the connection: nothing is read from it or sent to it any more.
  void close();

  /// The addresses of both ends, as numbers.
  const std::string& peer_address() const { return peer_; }
  std::string own_address() const;

 private:
  using Clock = std::chrono::steady_clock;
  void flush();
  bool read_some();

  std::unique_ptr<Socket> socket_;
  SealedLines lines_;
  const std::string peer_;
  bool closed_ = false, proven_ = false;
  bool given_up_ = false;    // by close()
  bool unwritable_ = false;  // what the other end has sent may still be read
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point heard_ = begun_, spoke_ = begun_;
};

/// A socket at which a launcher is called. [one thread]
class ElasticListener {
 public:
  /// At this address. Null where it is not one of this host, or the port is taken; `why` says which.
  static std::unique_ptr<ElasticListener> at(const LauncherAddress& address, std::string& why);
  /// At this port of an address, or at a free one where that is taken. An empty address: all of this host. Throws
  /// RuntimeFault.
  static std::unique_ptr<ElasticListener> at_some_port(const LauncherAddress& address);
  ~ElasticListener();
  ElasticListener(const ElasticListener&) = delete;

  /// Callers must have this secret.
  void set_secret(std::string secret) { secret_ = std::move(secret); }
  int descriptor() const;
  int port() const;
  /// The next caller; null where nobody calls.
  std::unique_ptr<ElasticLink> answer();

 private:
  struct Socket;
  explicit ElasticListener(std::unique_ptr<Socket> socket);
  std::unique_ptr<Socket> socket_;
  std::string secret_;
};

/// Whether this host has that address.
bool is_of_this_host(const std::string& host);
/// Whether all of these addresses are reached from this host alone: "localhost", "127.0.0.1".
bool are_loopback(const std::vector<LauncherAddress>& addresses);
/// The places that an address stands for, as numbers; none where nothing is known of it.
std::vector<std::string> places_of(const LauncherAddress& address);

}  // namespace capstan

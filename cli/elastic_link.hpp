#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/launcher_address.hpp"
#include "core/text/json.hpp"

namespace capstan::cli {

/// A connection between two launchers, over which JSON values travel, a line each. It never waits, and it speaks now
/// and then, so that the other end knows that this host is there. [one thread]
class ElasticLink {
 public:
  explicit ElasticLink(int socket);
  ~ElasticLink();
  ElasticLink(const ElasticLink&) = delete;
  /// Null where nobody answers there within `patience`; `why` says how.
  static std::unique_ptr<ElasticLink> call(const LauncherAddress& address, std::chrono::milliseconds patience,
                                           std::string& why);

  int descriptor() const { return socket_; }
  void send(const Json& message);
  /// The next message that has come; nothing where none has. What is no message closes the connection.
  std::optional<Json> receive();
  /// Sends what could not be sent yet, and a sign of life where one is due.
  void keep_alive();
  /// The other end has gone: its kernel says so, or it has sent what is no message.
  bool is_closed() const { return closed_; }
  /// Nothing has come for so long that the other host counts as lost.
  bool is_silent() const;
  /// Closes the connection: nothing is read from it or sent to it any more.
  void close();

  /// The addresses of both ends, as numbers.
  std::string peer_address() const;
  std::string own_address() const;

 private:
  using Clock = std::chrono::steady_clock;
  void flush();
  void read_what_came();

  int socket_;
  std::string in_, out_;
  std::size_t begin_ = 0;  // of what is not read of in_
  bool closed_ = false;
  Clock::time_point heard_ = Clock::now(), spoke_ = Clock::now();
};

/// A socket at which a launcher is called. [one thread]
class ElasticListener {
 public:
  /// At this address. Null where it is not one of this host, or the port is taken; `why` says which.
  static std::unique_ptr<ElasticListener> at(const LauncherAddress& address, std::string& why);
  /// At this port of all addresses of this host, or at a free one where that is taken. Throws RuntimeFault.
  static std::unique_ptr<ElasticListener> at_any_address(int port);
  /// Whether this host has that address.
  static bool is_of_this_host(const std::string& host);
  ~ElasticListener();
  ElasticListener(const ElasticListener&) = delete;

  int descriptor() const { return socket_; }
  int port() const;
  /// Who calls; null: nobody does.
  std::unique_ptr<ElasticLink> answer();

 private:
  explicit ElasticListener(int socket) : socket_(socket) {}
  int socket_;
};

/// Those who have called a launcher and whom it does not know yet. [one thread]
class ElasticCallers {
 public:
  /// Takes calls, and hears what callers say: `answer` may reply, or take the connection over.
  using Answer = std::function<void(std::unique_ptr<ElasticLink>& caller, const Json& message)>;
  void hear(ElasticListener& listener, const Answer& answer);

 private:
  std::vector<std::unique_ptr<ElasticLink>> callers_;
};

}  // namespace capstan::cli

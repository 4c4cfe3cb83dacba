#include "cli/elastic_link.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/errors.hpp"

namespace capstan::cli {
namespace {

using std::chrono::milliseconds;

/// How often a launcher speaks, and how long another host may be silent: its launcher does nothing else than look after
/// its processes, but a machine may be very busy.
constexpr milliseconds kSpeaks{500}, kSilent{5000};
/// No message is longer: a configuration and the state of a thousand processes are a part of that.
constexpr std::size_t kLongest = std::size_t{64} << 20;
/// So many that are not known may call at a time.
constexpr std::size_t kMostCallers = 1024;

std::string reason() { return std::generic_category().message(errno); }

/// Calls `use` with each address that the name stands for until one returns true. Why none did; empty where one has.
template <class Use>
std::string with_addresses(const std::string& host, int port, int flags, const Use& use) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) return gai_strerror(failure);
  std::string why = "it has no address";
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (use(*one)) {
      why.clear();
      break;
    }
    why = reason();
  }
  freeaddrinfo(found);
  return why;
}

int open_socket(const addrinfo& address) {
  return socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/// A socket that listens there; -1: errno says why there is none.
int listen_at(const addrinfo& address) {
  const int number = open_socket(address);
  const int on = 1;
  if (number >= 0 && setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      bind(number, address.ai_addr, address.ai_addrlen) == 0 && listen(number, SOMAXCONN) == 0) {
    return number;
  }
  const int failure = errno;
  if (number >= 0) close(number);
  errno = failure;
  return -1;
}

int connect_to(const addrinfo& address, milliseconds patience) {
  const int number = open_socket(address);
  if (number < 0) return -1;
  int failure = connect(number, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (failure == EINPROGRESS) {
    pollfd one{number, POLLOUT, 0};
    socklen_t length = sizeof failure;
    if (poll(&one, 1, static_cast<int>(patience.count())) != 1) {
      failure = ETIMEDOUT;
    } else {
      getsockopt(number, SOL_SOCKET, SO_ERROR, &failure, &length);
    }
  }
  if (failure == 0) return number;
  close(number);
  errno = failure;
  return -1;
}

using AddressOf = int (*)(int, sockaddr*, socklen_t*);
std::string address_of(int socket, AddressOf end) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char name[NI_MAXHOST];
  if (end(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, name, sizeof name, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string text = name;
  // An IPv4 address as a socket of both families shows it.
  return text.starts_with("::ffff:") && text.find('.') != std::string::npos ? text.substr(7) : text;
}

}  // namespace

ElasticLink::ElasticLink(int socket) : socket_(socket) {
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

ElasticLink::~ElasticLink() { ::close(socket_); }

std::unique_ptr<ElasticLink> ElasticLink::call(const LauncherAddress& address, milliseconds patience,
                                               std::string& why) {
  int socket = -1;
  why = with_addresses(address.host, address.port, 0, [&](const addrinfo& one) {
    socket = connect_to(one, patience);
    return socket >= 0;
  });
  return socket < 0 ? nullptr : std::make_unique<ElasticLink>(socket);
}

void ElasticLink::send(const Json& message) {
  if (closed_) return;
  out_ += message.dump() + "\n";
  flush();
}

void ElasticLink::flush() {
  while (!closed_ && !out_.empty()) {
    const ssize_t sent = ::send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) return close();
    out_.erase(0, static_cast<std::size_t>(sent));
    spoke_ = Clock::now();
  }
  if (out_.size() > kLongest) close();  // the other end reads nothing
}

void ElasticLink::read_what_came() {
  char buffer[1 << 16];
  while (!closed_) {
    const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) {
      closed_ = true;
      return;
    }
    heard_ = Clock::now();
    in_.append(buffer, static_cast<std::size_t>(count));
    if (in_.size() - begin_ > kLongest) return close();
  }
}

std::optional<Json> ElasticLink::receive() {
  while (true) {
    std::size_t end = in_.find('\n', begin_);
    if (end == std::string::npos) {
      in_.erase(0, begin_);
      begin_ = 0;
      const std::size_t had = in_.size();
      read_what_came();
      if (in_.size() == had) return std::nullopt;
      end = in_.find('\n', had);
      if (end == std::string::npos) return std::nullopt;
    }
    const std::string_view line = std::string_view(in_).substr(begin_, end - begin_);
    begin_ = end + 1;
    if (line.empty()) continue;  // a sign of life
    try {
      Json message = Json::parse(line);
      if (message.is_object()) return message;
    } catch (const ConfigError&) {
      // Some other program speaks.
    }
    close();
    return std::nullopt;
  }
}

void ElasticLink::keep_alive() {
  if (out_.empty() && Clock::now() - spoke_ > kSpeaks) out_ = "\n";
  flush();
}

bool ElasticLink::is_silent() const { return Clock::now() - heard_ > kSilent; }

void ElasticLink::close() {
  closed_ = true;
  shutdown(socket_, SHUT_RDWR);
  in_.clear();
  begin_ = 0;
  out_.clear();
}

std::string ElasticLink::peer_address() const { return address_of(socket_, getpeername); }
std::string ElasticLink::own_address() const { return address_of(socket_, getsockname); }

std::unique_ptr<ElasticListener> ElasticListener::at(const LauncherAddress& address, std::string& why) {
  int socket = -1;
  why = with_addresses(address.host, address.port, 0, [&](const addrinfo& one) {
    socket = listen_at(one);
    return socket >= 0;
  });
  return socket < 0 ? nullptr : std::unique_ptr<ElasticListener>(new ElasticListener(socket));
}

std::unique_ptr<ElasticListener> ElasticListener::at_any_address(int port) {
  std::string why;
  for (const int one : {port, 0}) {
    int socket = -1;
    why = with_addresses("", one, AI_PASSIVE, [&](const addrinfo& address) {
      socket = listen_at(address);
      return socket >= 0;
    });
    if (socket >= 0) return std::unique_ptr<ElasticListener>(new ElasticListener(socket));
  }
  throw RuntimeFault("launch: no port to listen at: " + why + ".");
}

bool ElasticListener::is_of_this_host(const std::string& host) {
  bool found = false;
  with_addresses(host, 0, 0, [&](const addrinfo& one) {
    const int socket = open_socket(one);
    found = socket >= 0 && bind(socket, one.ai_addr, one.ai_addrlen) == 0;
    if (socket >= 0) close(socket);
    return found;
  });
  return found;
}

ElasticListener::~ElasticListener() { close(socket_); }

int ElasticListener::port() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::unique_ptr<ElasticLink> ElasticListener::answer() {
  const int socket = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  return socket < 0 ? nullptr : std::make_unique<ElasticLink>(socket);
}

void ElasticCallers::hear(ElasticListener& listener, const Answer& answer) {
  while (auto caller = listener.answer()) {
    if (callers_.size() < kMostCallers) callers_.push_back(std::move(caller));
  }
  for (auto& caller : callers_) {
    if (const auto message = caller->receive()) answer(caller, *message);
    if (caller) caller->keep_alive();
    // What was answered is kept until the other end has read it and closes.
    if (caller && (caller->is_closed() || caller->is_silent())) caller.reset();
  }
  std::erase(callers_, nullptr);
}

}  // namespace capstan::cli

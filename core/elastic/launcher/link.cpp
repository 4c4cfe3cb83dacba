#include "core/elastic/launcher/link.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "core/comm/port_file.hpp"
#include "core/comm/socket_patience.hpp"
#include "core/errors.hpp"

namespace capstan {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

/// How often a launcher speaks, and how long another host may be silent: its launcher does nothing else than look after
/// its processes, but a machine may be very busy.
constexpr milliseconds kSpeaks{500}, kSilent{5000};
/// How long a caller may take to prove that it has the secret.
constexpr milliseconds kToProve{2000};
/// What may wait to be sent: the other end reads nothing.
constexpr std::size_t kMostUnsent = 4 * SealedLines::kLongest;

/// Sockets belong to it; it runs only while a launcher connects, because ElasticHost waits for all descriptors at once.
asio::io_context& context() {
  static asio::io_context one;
  return one;
}

/// Neither waits nor stays open in the processes that a launcher starts.
template <class Socket>
void prepare(Socket& socket, error_code& error) {
  if (!error && fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC) != 0)
    error.assign(errno, boost::system::system_category());
  if (!error) socket.non_blocking(true, error);
}

/// A launcher that hears nothing for 5 s counts the other one as lost.
void hurry(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  retransmit_often(socket.native_handle());
}

/// Calls `use` with each endpoint that an address stands for until one leaves no error. The last error.
template <class Use>
error_code with_endpoints(const LauncherAddress& address, const Use& use) {
  error_code error;
  tcp::resolver resolver(context());
  const auto flags = address.host.empty() ? tcp::resolver::passive : tcp::resolver::flags();
  const auto found = resolver.resolve(address.host, std::to_string(address.port), flags, error);
  if (error) return error;
  for (const auto& one : found) {
    error = use(one.endpoint());
    if (!error) break;
  }
  return error;
}

error_code connect(tcp::socket& socket, const tcp::endpoint& endpoint, milliseconds patience) {
  error_code error, ignored;
  socket.close(ignored);
  socket.open(endpoint.protocol(), error);
  prepare(socket, error);
  if (error) return error;
  std::optional<error_code> result;
  socket.async_connect(endpoint, [&](const error_code& how) { result = how; });
  context().restart();
  context().run_for(patience);
  if (!result) {
    socket.close(ignored);
    context().restart();
    context().run();  // the call that was given up
    return asio::error::timed_out;
  }
  if (!*result) hurry(socket);
  return *result;
}

error_code listen(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code error;
  const auto then = [&](auto step) {
    if (!error) step();
  };
  acceptor.open(endpoint.protocol(), error);
  prepare(acceptor, error);
  then([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), error); });
  then([&] { acceptor.bind(endpoint, error); });
  then([&] { acceptor.listen(asio::socket_base::max_listen_connections, error); });
  if (error) {
    error_code ignored;
    acceptor.close(ignored);
  }
  return error;
}

/// As a number. An IPv4 address is one also where a socket of both families has it.
std::string text_of(const asio::ip::address& address) {
  const bool mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  return mapped ? asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string() : address.to_string();
}

std::string peer_of(const tcp::socket& socket) {
  error_code error;
  const tcp::endpoint end = socket.remote_endpoint(error);
  return error ? "" : text_of(end.address());
}

}  // namespace

struct ElasticLink::Socket {
  tcp::socket socket{context()};
};

struct ElasticListener::Socket {
  tcp::acceptor acceptor{context()};
};

ElasticLink::ElasticLink(std::unique_ptr<Socket> socket, SealedLines::Side side, const std::string& secret)
    : socket_(std::move(socket)), lines_(secret, side, random_secret()), peer_(peer_of(socket_->socket)) {
  flush();
}

ElasticLink::~ElasticLink() = default;

std::unique_ptr<ElasticLink> ElasticLink::call(const LauncherAddress& address, const std::string& secret,
                                               milliseconds patience, std::string& why) {
  auto socket = std::make_unique<Socket>();
  const error_code error = with_endpoints(
      address, [&](const tcp::endpoint& endpoint) { return connect(socket->socket, endpoint, patience); });
  why = error ? error.message() : "";
  if (error) return nullptr;
  return std::make_unique<ElasticLink>(std::move(socket), SealedLines::Side::kCaller, secret);
}

int ElasticLink::descriptor() const { return socket_->socket.native_handle(); }

void ElasticLink::send(const Json& message) {
  if (closed_) return;
  lines_.send(message.dump());
  flush();
}

void ElasticLink::flush() {
  while (!closed_ && !unwritable_ && !lines_.outgoing().empty()) {
    error_code error;
    const std::size_t sent = socket_->socket.write_some(asio::buffer(lines_.outgoing()), error);
    if (error == asio::error::would_block) break;
    unwritable_ = bool{error};  // perhaps the other end has said why
    lines_.sent(sent);
    spoke_ = Clock::now();
  }
  const bool is_stuck = lines_.outgoing().size() > kMostUnsent;
  const bool is_done = lines_.is_broken() && (unwritable_ || lines_.outgoing().empty());
  if (!closed_ && (is_stuck || is_done)) close();
}

/// Whether there may be a line more.
bool ElasticLink::read_some() {
  if (closed_) return false;
  std::array<char, SealedLines::kMostUnproven / 2> buffer;
  error_code error;
  const std::size_t count = socket_->socket.read_some(asio::buffer(buffer), error);
  if (error == asio::error::would_block) return false;
  if (error) closed_ = true;
  lines_.take({buffer.data(), count});
  return count > 0;
}

std::optional<Json> ElasticLink::receive() {
  do {
    while (const auto line = given_up_ ? std::nullopt : lines_.next()) {
      proven_ = true;
      heard_ = Clock::now();
      if (line->empty()) continue;  // a sign of life
      try {
        Json message = Json::parse(*line);
        if (message.is_object()) return message;
      } catch (const ConfigError&) {
        // Not a message.
      }
      close();
      return std::nullopt;
    }
    flush();  // what waited for the other end to greet, or why nothing more is read
  } while (read_some());
  return std::nullopt;
}

void ElasticLink::keep_alive() {
  if (proven_ && lines_.outgoing().empty() && Clock::now() - spoke_ > kSpeaks) lines_.send("");
  flush();
}

bool ElasticLink::is_silent() const {
  return proven_ ? Clock::now() - heard_ > kSilent : Clock::now() - begun_ > kToProve;
}

milliseconds ElasticLink::age() const { return std::chrono::duration_cast<milliseconds>(Clock::now() - begun_); }

void ElasticLink::close() {
  closed_ = given_up_ = true;
  error_code ignored;
  socket_->socket.shutdown(tcp::socket::shutdown_both, ignored);
}

std::string ElasticLink::own_address() const {
  error_code error;
  const tcp::endpoint end = socket_->socket.local_endpoint(error);
  return error ? "" : text_of(end.address());
}

ElasticListener::ElasticListener(std::unique_ptr<Socket> socket) : socket_(std::move(socket)) {}
ElasticListener::~ElasticListener() = default;

std::unique_ptr<ElasticListener> ElasticListener::at(const LauncherAddress& address, std::string& why) {
  auto socket = std::make_unique<Socket>();
  const error_code error =
      with_endpoints(address, [&](const tcp::endpoint& endpoint) { return listen(socket->acceptor, endpoint); });
  why = error ? error.message() : "";
  return error ? nullptr : std::unique_ptr<ElasticListener>(new ElasticListener(std::move(socket)));
}

std::unique_ptr<ElasticListener> ElasticListener::at_some_port(const LauncherAddress& address) {
  std::string why;
  for (const int port : {address.port, 0}) {
    if (auto listener = at({address.host, port}, why)) return listener;
  }
  throw RuntimeFault("launch: no port to listen at: " + why + ".");
}

int ElasticListener::descriptor() const { return socket_->acceptor.native_handle(); }

int ElasticListener::port() const {
  error_code error;
  const tcp::endpoint end = socket_->acceptor.local_endpoint(error);
  return error ? 0 : end.port();
}

std::unique_ptr<ElasticLink> ElasticListener::answer() {
  auto socket = std::make_unique<ElasticLink::Socket>();
  error_code error, ignored;
  socket_->acceptor.accept(socket->socket, error);
  prepare(socket->socket, error);
  if (error) return nullptr;
  hurry(socket->socket);
  return std::make_unique<ElasticLink>(std::move(socket), SealedLines::Side::kListener, secret_);
}

bool is_of_this_host(const std::string& host) {
  return !with_endpoints({host, 0}, [&](const tcp::endpoint& endpoint) {
    tcp::acceptor acceptor(context());
    return listen(acceptor, endpoint);
  });
}

bool are_loopback(const std::vector<LauncherAddress>& addresses) {
  bool all = true;
  for (const LauncherAddress& address : addresses) {
    const error_code error = with_endpoints(address, [&](const tcp::endpoint& endpoint) -> error_code {
      all = all && endpoint.address().is_loopback();
      return asio::error::try_again;  // the next one
    });
    all = all && error == asio::error::try_again;
  }
  return all;
}

std::vector<std::string> places_of(const LauncherAddress& address) {
  std::vector<std::string> places;
  with_endpoints(address, [&](const tcp::endpoint& endpoint) -> error_code {
    places.push_back(LauncherAddress{text_of(endpoint.address()), endpoint.port()}.text());
    return asio::error::try_again;
  });
  return places;
}

}  // namespace capstan

// Processes that are none of the neighbours, though they say so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <functional>
#include <future>
#include <sstream>

#include "core/comm/neighbour.hpp"
#include "core/errors.hpp"
#include "tests/core/comm/texts.hpp"

namespace capstan {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::StrEq;
using testing::ThrowsMessage;

constexpr uid_t kNobody = 65534;
constexpr auto kPatience = seconds(30);

std::string name_of(uid_t user) { return ::getpwuid(user)->pw_name; }

/// The fields of a card: host, address, process, number, place.
std::vector<std::string> fields(const std::string& card) {
  std::istringstream in(card);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Another process, which lives until the object dies. What its body returns, its parent gets.
class Stranger {
 public:
  Stranger(uid_t user, const std::function<std::string()>& body) {
    if (::pipe(pipe_) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ != 0) return;
    if (user != ::getuid() && ::setuid(user) != 0) ::_exit(1);
    const std::string told = body();
    if (::write(pipe_[1], told.data(), told.size()) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  ~Stranger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (const int end : pipe_) ::close(end);
  }
  Stranger(const Stranger&) = delete;

  std::string told() const {
    std::array<char, 128> text{};
    const ssize_t count = ::read(pipe_[0], text.data(), text.size());
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
  }
  pid_t pid() const { return pid_; }

 private:
  int pipe_[2];
  pid_t pid_;
};

sockaddr_un abstract_name(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + (name.empty() ? 0 : 1 + name.size()));
  return address;
}

/// Calls rank 0 as rank 1 would, and agrees to everything.
std::string call_as_rank_1(const std::string& name) {
  socklen_t length = 0;
  const sockaddr_un address = abstract_name(name, length);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0), rank = 1;
  const bool called = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                      ::send(socket, &rank, sizeof rank, 0) > 0 && ::send(socket, "y", 1, 0) > 0;
  return called ? "called" : "failed";
}

/// Listens as rank 0 would; the name of the socket.
std::string listen_as_rank_0() {
  socklen_t length = 0;
  sockaddr_un address = abstract_name("", length);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  length = sizeof address.sun_family;
  if (::bind(socket, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(socket, 1) != 0) return "";
  length = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return {address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1};
}

/// Rank 0 and rank 1 of this process meet although a process of `user` calls rank 0 first.
void expect_turned_away(uid_t user) {
  Texts texts;
  ::testing::internal::CaptureStderr();
  auto lower = std::async([&] { return meet_neighbours(texts, 0, 2, kPatience); });
  const std::string address = fields(texts.read("neighbour/0", kPatience)).at(1);
  const Stranger stranger(user, [&] { return call_as_rank_1(address); });
  ASSERT_EQ(stranger.told(), "called");
  const auto second = meet_neighbours(texts, 1, 2, kPatience);
  const auto first = lower.get();
  const std::string log = ::testing::internal::GetCapturedStderr();

  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  const std::uint64_t sent = 7;
  ASSERT_TRUE(first[0]->send({Packet::Kind::kValues, {1, 2}, sizeof sent, 0}, &sent));
  ASSERT_TRUE(second[0]->receive().has_value());
  EXPECT_THAT(log, HasSubstr("process " + std::to_string(stranger.pid()) + " of " + name_of(user) +
                             " called rank 0 but is none of its neighbours; it was turned away"));
}

/// What rank 1 says when rank 0's card names a socket of a process of `user`, and process `pid_on_card`.
void expect_refused(uid_t user, const std::function<pid_t(const Stranger&)>& pid_on_card) {
  Texts texts;
  const Stranger stranger(user, listen_as_rank_0);
  const std::string address = stranger.told();
  const std::string process = std::to_string(pid_on_card(stranger));
  auto caller = std::async([&] { return meet_neighbours(texts, 1, 2, kPatience); });
  const std::string host = fields(texts.read("neighbour/1", kPatience)).at(0);
  texts.publish("neighbour/0", host + " " + address + " " + process + " 1 1");

  EXPECT_THAT([&] { caller.get(); },
              ThrowsMessage<RuntimeFault>(StrEq(
                  "rank 1: cannot connect to the processes of this host: the socket of rank 0 belongs to process " +
                  std::to_string(stranger.pid()) + " of " + name_of(user) + ", not to process " + process + " of " +
                  name_of(::geteuid()) + ". CAPSTAN_HOST_MEMORY=off makes them exchange over TCP.")));
}

TEST(MeetNeighbours, TurnsAwayACallerOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  expect_turned_away(kNobody);
}

TEST(MeetNeighbours, TurnsAwayACallerThatIsNotTheProcessOfItsRank) { expect_turned_away(::geteuid()); }

TEST(MeetNeighbours, RefusesToCallAProcessOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  expect_refused(kNobody, [](const Stranger& stranger) { return stranger.pid(); });
}

TEST(MeetNeighbours, RefusesToCallAProcessThatIsNotThatOfTheRank) {
  expect_refused(::geteuid(), [](const Stranger&) { return ::getpid(); });
}

}  // namespace
}  // namespace capstan

#include "core/comm/socket_patience.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace capstan {
namespace {

constexpr int kGreatestRetransmissionTime = 44;  // TCP_RTO_MAX_MS

/// A connection over loopback, both of whose ends are silent.
class SocketPatience : public ::testing::Test {
 protected:
  SocketPatience() {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(listener_, 1);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    connect(caller_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    answerer_ = accept(listener_, nullptr, nullptr);
  }
  ~SocketPatience() override {
    for (const int each : {listener_, caller_, answerer_}) close(each);
  }
  static int longest_retransmission(int socket) {
    int milliseconds = 0;
    socklen_t length = sizeof milliseconds;
    return getsockopt(socket, IPPROTO_TCP, kGreatestRetransmissionTime, &milliseconds, &length) == 0 ? milliseconds
                                                                                                     : -1;
  }

  int listener_ = socket(AF_INET, SOCK_STREAM, 0), caller_ = socket(AF_INET, SOCK_STREAM, 0), answerer_ = -1;
  int port_ = 0;
};

TEST_F(SocketPatience, EndsAReadFromAPortThatSaysNothing) {
  limit_waits_for_port(port_, std::chrono::milliseconds(20));
  char byte = 0;
  EXPECT_EQ(recv(caller_, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  timeval other{};
  socklen_t length = sizeof other;
  ASSERT_EQ(getsockopt(answerer_, SOL_SOCKET, SO_RCVTIMEO, &other, &length), 0);
  EXPECT_EQ(other.tv_sec + other.tv_usec, 0);  // its peer has another port
}

TEST_F(SocketPatience, FindsOutWhetherSomethingListens) {
  EXPECT_TRUE(listens_at("127.0.0.1", port_, std::chrono::seconds(10)));
  close(listener_);
  EXPECT_FALSE(listens_at("127.0.0.1", port_, std::chrono::seconds(10)));
}

TEST_F(SocketPatience, RetransmitsEachSecondOnEveryConnection) {
  if (longest_retransmission(caller_) < 0) GTEST_SKIP() << "TCP_RTO_MAX_MS needs Linux 6.15";
  EXPECT_GT(longest_retransmission(caller_), 1000);
  retransmit_often();
  EXPECT_EQ(longest_retransmission(caller_), 1000);
  EXPECT_EQ(longest_retransmission(answerer_), 1000);
}

}  // namespace
}  // namespace capstan

#include "core/comm/no_name_server.hpp"

#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>

#include <thread>

namespace capstan {
namespace {

TEST(NoNameServer, KnowsAddressesFromNames) {
  for (const char* address : {"127.0.0.1", "10.0.0.255", "::1", "fe80::1"}) EXPECT_TRUE(is_numeric_address(address));
  for (const char* name : {"localhost", "node1", "10.0.0", "10.0.0.256", ""}) EXPECT_FALSE(is_numeric_address(name));
}

TEST(NoNameServer, IsAskedByThisThreadAloneAndForAWhileAlone) {
  ASSERT_EQ(res_init(), 0);
  const int before = _res.nscount;
  ASSERT_GT(before, 0);  // 127.0.0.1 where /etc/resolv.conf names none
  {
    const NoNameServer inactive(false);
    EXPECT_EQ(_res.nscount, before);
    const NoNameServer active(true);
    EXPECT_EQ(_res.nscount, 0);
    const NoNameServer another(true);
    std::thread([&] {
      ASSERT_EQ(res_init(), 0);
      EXPECT_EQ(_res.nscount, before);
    }).join();
    // An address of documentation (RFC 5737), whose name a server alone could know.
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(0xC0000201);
    char host[NI_MAXHOST];
    EXPECT_NE(getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof address, host, sizeof host, nullptr, 0,
                          NI_NAMEREQD),
              0);
  }
  EXPECT_EQ(_res.nscount, before);
}

}  // namespace
}  // namespace capstan

#include "core/elastic/launcher/address.hpp"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(LauncherAddress, IsAHostAndAPort) {
  EXPECT_EQ(LauncherAddress::of("node1:29400"), (LauncherAddress{"node1", 29400}));
  EXPECT_EQ(LauncherAddress::of("10.0.0.1:1"), (LauncherAddress{"10.0.0.1", 1}));
  EXPECT_EQ(LauncherAddress::of("[fe80::1]:65535"), (LauncherAddress{"fe80::1", 65535}));
  EXPECT_EQ((LauncherAddress{"fe80::1", 29400}).text(), "[fe80::1]:29400");
  EXPECT_EQ((LauncherAddress{"node1", 29400}).text(), "node1:29400");
  for (const char* text : {"", "node1", "node1:", ":29400", "node1:0", "node1:65536", "node1:-1", "node1:29400x",
                           "fe80::1:29400", "node1: 29400"}) {
    EXPECT_FALSE(LauncherAddress::of(text)) << text;
  }
}

TEST(LauncherAddress, ComesAsAListWhoseAddressesAreAllGood) {
  const auto list = LauncherAddress::list_of("node1:1,[::1]:2");
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1], (LauncherAddress{"::1", 2}));
  EXPECT_TRUE(LauncherAddress::list_of("node1:1,,node2:2").empty());
  EXPECT_TRUE(LauncherAddress::list_of("node1:1,node2").empty());
}

}  // namespace
}  // namespace capstan

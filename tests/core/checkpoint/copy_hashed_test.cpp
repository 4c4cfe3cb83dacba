#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/checkpoint/snapshot.hpp"
#include "core/xxh3.hpp"

namespace capstan {
namespace {

std::vector<std::byte> some_bytes(std::size_t count) {
  std::mt19937 random(3);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(CopyHashed, CopiesEachByteAndNoOtherWhereverItStands) {
  const std::vector<std::byte> from = some_bytes(70'000);
  constexpr std::byte kUntouched{0xa5};
  for (const CopyPath path : {CopyPath::kThroughCaches, CopyPath::kPastCaches}) {
    for (const std::size_t count : {0, 1, 15, 63, 64, 65, 127, 128, 200, 16'384, 16'385, 65'600}) {
      for (const std::size_t source : {0, 1, 4}) {
        for (const std::size_t place : {0, 1, 8, 63}) {
          std::vector<std::byte> to(count + 256, kUntouched);
          const std::size_t begin = 64 + place;
          const std::uint64_t digest = copy_hashed(to.data() + begin, from.data() + source, count, path);
          ASSERT_EQ(digest, xxh3(from.data() + source, count)) << count;
          ASSERT_EQ(std::memcmp(to.data() + begin, from.data() + source, count), 0) << count << " at " << place;
          for (std::size_t at = 0; at < to.size(); ++at) {
            const bool copied = at >= begin && at < begin + count;
            ASSERT_TRUE(copied || to[at] == kUntouched) << count << " at " << place;
          }
        }
      }
    }
  }
}

TEST(CopyHashed, GoesPastTheCachesWhereTheyWouldNotHoldTheSnapshot) {
  EXPECT_EQ(copy_path(1 << 20), CopyPath::kThroughCaches);
  EXPECT_EQ(copy_path(100 << 20), CopyPath::kPastCaches);
}

}  // namespace
}  // namespace capstan

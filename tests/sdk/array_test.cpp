#include "capstan/sdk/array.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>

namespace capstan::sdk {
namespace {

struct Triple {
  double a, b, c;
};

TEST(Array, HoldsWhatIsWritten) {
  const Array<Triple> array(Place::kHost, 1000);
  ASSERT_EQ(array.size(), 1000u);
  for (std::size_t i = 0; i < array.size(); ++i) array.data()[i] = {1.0 * static_cast<double>(i), 2, 3};
  double sum = 0;
  for (const Triple& triple : array.span()) sum += triple.a + triple.b + triple.c;
  EXPECT_EQ(sum, 999 * 1000 / 2 + 5 * 1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data()) % 64, 0u);
}

TEST(Array, IsEmptyByDefaultAndOfSizeZero) {
  EXPECT_EQ(Array<float>().size(), 0u);
  EXPECT_EQ(Array<float>().data(), nullptr);
  EXPECT_EQ(Array<float>(Place::kHost, 0).size(), 0u);
}

TEST(Array, MovesWithItsMemory) {
  Array<std::int64_t> first(Place::kHost, 3);
  first.data()[2] = 7;
  const std::int64_t* at = first.data();
  Array<std::int64_t> second(Place::kHost, 1);
  second = std::move(first);
  EXPECT_EQ(second.data(), at);
  EXPECT_EQ(second.size(), 3u);
  EXPECT_EQ(second.data()[2], 7);
  const Array<std::int64_t> third(std::move(second));
  EXPECT_EQ(third.data(), at);
}

TEST(Array, SaysWhenThereIsNoSuchMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end a process that asks for that much";
#endif
  try {
    const Array<float> array(Place::kHost, std::size_t{1} << 60);
    FAIL() << "there cannot be that much";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "LibTorch has no 4611686018427387904 bytes of host memory.");
  }
}

}  // namespace
}  // namespace capstan::sdk

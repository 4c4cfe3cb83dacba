#include "core/data/mapped_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/support/data_limit.hpp"

namespace capstan {
namespace {

TEST(MappedFile, IsReadUnderALimitOfMemoryThatItIsLargerThan) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer needs more memory than the limit";
#endif
  const test::TemporaryFolder folder;
  const std::string path = folder.write("x", "first");
  constexpr std::size_t kBytes = 64 << 20;
  std::filesystem::resize_file(path, kBytes);

  const test::DataLimit limit(8 << 20);
  void* memory = std::malloc(kBytes);
  EXPECT_EQ(memory, nullptr) << "the limit does not hold";
  std::free(memory);
  const MappedFile file(path);
  ASSERT_EQ(file.size(), kBytes);
  EXPECT_EQ(file.data()[0], std::byte{'f'});
  std::size_t zeros = 0;
  for (std::size_t i = 4096; i < kBytes; i += 4096) zeros += file.data()[i] == std::byte{0};
  EXPECT_EQ(zeros, kBytes / 4096 - 1);
}

TEST(MappedFile, ThatWasShortenedIsToldBeforeItIsRead) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("x", "1234567890");
  const MappedFile file(path);
  file.check_size();
  std::filesystem::resize_file(path, 4);
  EXPECT_THAT([&] { file.check_size(); },
              testing::ThrowsMessage<RuntimeFault>("'" + path +
                                                   "' was shortened while it was being read: 10 bytes at the start, "
                                                   "4 now."));
}

}  // namespace
}  // namespace capstan

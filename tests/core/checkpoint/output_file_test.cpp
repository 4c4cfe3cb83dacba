#include "core/checkpoint/output_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <string>

#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using test::read_bytes;
using test::TemporaryFolder;
using ::testing::ThrowsMessage;

TEST(OutputFile, PiecesOfAnySizeArriveInOrder) {
  const TemporaryFolder folder;
  std::string all;
  OutputFile file(folder / "out");
  for (std::size_t size : {std::size_t{3}, std::size_t{1} << 20, std::size_t{0}, (std::size_t{1} << 20) - 1,
                           std::size_t{5}, std::size_t{3'000'000}, std::size_t{1}}) {
    const std::string piece(size, static_cast<char>('a' + all.size() % 26));
    file.write(piece);
    all += piece;
    EXPECT_EQ(file.position(), all.size());
  }
  file.finish();

  EXPECT_EQ(read_bytes(folder / "out"), all);
}

TEST(OutputFile, WithoutFinishNothingStays) {
  const TemporaryFolder folder;
  { OutputFile(folder / "out").write("text"); }

  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(OutputFile, WhatCannotBeCreatedIsNamed) {
  const TemporaryFolder folder;
  const auto path = folder / "no/such/file";

  EXPECT_THAT([&] { OutputFile{path}; },
              ThrowsMessage<RuntimeFault>("'" + path.string() + "' cannot be created: No such file or directory."));
}

TEST(OutputFile, AFullDiskIsToldAndADeviceStays) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "there is no device /dev/full here";
  const TemporaryFolder folder;
  const auto path = folder / "full";
  fs::create_symlink("/dev/full", path);
  const std::string piece(2 << 20, 'x');
  EXPECT_THAT([&] { OutputFile(path).write(piece); },
              ThrowsMessage<RuntimeFault>("'" + path.string() +
                                          "': writing failed at byte 0: No space left on device. "
                                          "Free space there or save elsewhere."));
  EXPECT_TRUE(fs::is_symlink(path));
}

TEST(OutputFile, AWriteThatFallsShortIsContinuedAndItsReasonTold) {
  const TemporaryFolder folder;
  const auto path = folder / "out";
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{3'000'000, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THAT([&] { OutputFile(path).write(std::string(4'000'000, 'x')); },
              ThrowsMessage<RuntimeFault>("'" + path.string() + "': writing failed at byte 3000000: File too large."));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_FALSE(fs::exists(path));
}

TEST(CreateFolders, CreatesAllThatAreMissing) {
  const TemporaryFolder folder;
  create_folders(folder / "a/b/c");
  create_folders(folder / "a/b/c/");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));

  folder.write("file", "");
  EXPECT_THAT([&] { create_folders(folder / "file/below"); },
              ThrowsMessage<RuntimeFault>(
                  ::testing::HasSubstr("folder '" + (folder / "file").string() + "' cannot be created: ")));
}

TEST(WriteAside, AnErrorLeavesTheOldFileAlone) {
  const TemporaryFolder folder;
  const auto path = folder.write("out", "old");
  EXPECT_THROW(write_aside(path,
                           [](const fs::path& aside) {
                             write_file(aside, "half");
                             throw RuntimeFault("broken");
                           }),
               RuntimeFault);
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);

  write_aside(path, [](const fs::path& aside) { write_file(aside, "new"); });
  EXPECT_EQ(read_bytes(path), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace capstan

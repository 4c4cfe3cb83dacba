#include "plugins/data/common/data_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capstan/sdk/component.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan::data {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> names(const std::vector<DataFile>& files) {
  std::vector<std::string> out;
  for (const auto& file : files) out.push_back(file.name);
  return out;
}

TEST(DataFiles, AFolderGivesItsFilesAndThoseOfItsSubfoldersSortedByPath) {
  const TemporaryFolder folder;
  for (const auto* name : {"b.txt", "a/z.txt", "a/b/c.txt", "a.txt", "B.txt"}) folder.write(name, "x");

  EXPECT_THAT(names(find_data_files({folder.path().string()}, false)),
              ElementsAre("B.txt", "a.txt", "a/b/c.txt", "a/z.txt", "b.txt"));
}

TEST(DataFiles, ArgumentsKeepTheirOrder) {
  const TemporaryFolder folder;
  const auto b = folder.write("b.txt", "x"), a = folder.write("a.txt", "x");

  EXPECT_THAT(names(find_data_files({b, a}, false)), ElementsAre("b.txt", "a.txt"));
}

TEST(DataFiles, HiddenAndEmptyFilesOfAFolderAreLeftOut) {
  const TemporaryFolder folder;
  folder.write(".git/config", "x");
  folder.write(".hidden", "x");
  folder.write("empty.txt", "");
  folder.write("kept.txt", "x");

  EXPECT_THAT(names(find_data_files({folder.path().string()}, false)), ElementsAre("kept.txt"));
}

TEST(DataFiles, PiecesOfAnUnfinishedResultAreLeftOutAndOtherFoldersOfSuchANameAreNot) {
  const TemporaryFolder folder;
  folder.write("corpus.bin.parts/0123456789abcdef-000000.bin", "xx");
  folder.write("corpus.bin.parts/0123456789abcdef-000001.idx.part", "xx");
  folder.write("books.parts/0123456789abcdef-000000.bin", "xx");
  folder.write("books.parts/a.bin", "xx");

  EXPECT_THAT(names(find_data_files({folder.path().string()}, true)),
              ElementsAre("books.parts/0123456789abcdef-000000.bin", "books.parts/a.bin"));
}

TEST(DataFiles, OnlyBinLeavesTheOthersOfAFolderOut) {
  const TemporaryFolder folder;
  folder.write("prepare.py", "x");
  folder.write("train.bin", "xx");

  EXPECT_THAT(names(find_data_files({folder.path().string()}, true)), ElementsAre("train.bin"));
}

TEST(DataFiles, AFileWithASymbolicLinkToItIsReadOnceAtItsOwnPlace) {
  const TemporaryFolder folder;
  folder.write("GPL-3", "text");
  folder.write("Zlib", "text");
  fs::create_symlink("GPL-3", folder / "GPL");
  fs::create_symlink("Zlib", folder / "zz");

  std::string said;
  EXPECT_THAT(names(find_data_files({folder.path().string()}, false, [&](const std::string& text) { said += text; })),
              ElementsAre("GPL-3", "Zlib"));
  EXPECT_EQ(said, "");  // so the folder is laid out, whoever named it
}

TEST(DataFiles, AFileNamedTwiceIsReadOnceAtItsFirstPlace) {
  const TemporaryFolder folder;
  const auto a = folder.write("a.txt", "x"), b = folder.write("b.txt", "y");

  std::string said;
  EXPECT_THAT(names(find_data_files({b, a, b}, false, [&](const std::string& text) { said += text; })),
              ElementsAre("b.txt", "a.txt"));
  EXPECT_EQ(said, "1 path leads to files that stand in the data already ('" + b + "' is '" + b +
                      "'); each file is read once.");
}

TEST(DataFiles, LinksThatLeadOutOfTheFolderAreFollowedAndCirclesEnd) {
  const TemporaryFolder folder, elsewhere;
  elsewhere.write("more/one.txt", "x");
  fs::create_directory_symlink(elsewhere / "more", folder / "linked");
  fs::create_directory_symlink(folder.path(), elsewhere / "more/back");

  EXPECT_THAT(names(find_data_files({folder.path().string()}, false)), ElementsAre("linked/one.txt"));
}

TEST(DataFiles, WhatCannotBeUsedIsNamed) {
  const TemporaryFolder folder;
  const auto missing = (folder / "no.txt").string(), empty = folder.write("empty.txt", "");
  const auto bare = (folder / "bare").string(), pipe = (folder / "pipe").string();
  fs::create_directory(bare);
  mkfifo(pipe.c_str(), 0600);
  const auto search = [](std::vector<std::string> paths, bool only_bin = false) {
    return [=] { find_data_files(paths, only_bin); };
  };

  EXPECT_THAT(search({}), ThrowsMessage<sdk::Error>("no file or folder was given."));
  EXPECT_THAT(search({missing}), ThrowsMessage<sdk::Error>("'" + missing + "': No such file or directory."));
  EXPECT_THAT(search({empty}), ThrowsMessage<sdk::Error>("'" + empty + "' is empty."));
  EXPECT_THAT(search({bare}), ThrowsMessage<sdk::Error>("folder '" + bare + "' holds no file with anything in it."));
  EXPECT_THAT(search({bare}, true),
              ThrowsMessage<sdk::Error>("folder '" + bare + "' holds no .bin file with anything in it."));
  EXPECT_THAT(search({pipe}), ThrowsMessage<sdk::Error>("'" + pipe + "' is neither a regular file nor a folder."));
}

TEST(DataFiles, AFolderThatMayNotBeReadIsNamed) {
  const TemporaryFolder folder;
  chmod(folder.path().c_str(), 0755);
  folder.write("closed/one.txt", "x");
  chmod((folder / "closed").c_str(), 0);
  // The superuser may read everything, so step down for the call.
  const bool stepped_down = geteuid() == 0 && seteuid(65534) == 0;
  EXPECT_THAT([&] { find_data_files({folder.path().string()}, false); },
              ThrowsMessage<sdk::Error>("folder '" + (folder / "closed").string() + "': Permission denied."));
  ASSERT_TRUE(!stepped_down || seteuid(0) == 0);
  chmod((folder / "closed").c_str(), 0755);
}

}  // namespace
}  // namespace capstan::data

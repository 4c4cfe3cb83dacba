#include "plugins/data/tokens/token_data.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "capstan/sdk/component.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan::data {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::ThrowsMessage;
using Format = TokenData::Format;
using Tokens = std::vector<std::int64_t>;

std::string uint16s(const std::vector<std::uint16_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()};
}

std::string llm_c(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return std::string(reinterpret_cast<const char*>(header.data()), 1024) + tokens;
}

Tokens sample(const TokenData& data, std::int64_t index) {
  Tokens out(static_cast<std::size_t>(data.sequence_length()) + 1);
  data.read(index, out.data());
  return out;
}

/// Bytes that differ from place to place and from seed to seed.
std::string text(std::size_t size, unsigned seed) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i * 31 + i / 251 + seed) % 256);
  return out;
}

TEST(TokenData, SamplesOverlapByOneTokenAndTheTailIsLeft) {
  const TemporaryFolder folder;
  const TokenData data({folder.write("a.txt", "abcdefgh")}, Format::kAuto, 3);

  EXPECT_EQ(data.tokens(), 8);
  EXPECT_EQ(data.samples(), 2);
  EXPECT_THAT(sample(data, 0), ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(sample(data, 1), ElementsAre('d', 'e', 'f', 'g'));
}

TEST(TokenData, BytesAreNotSigned) {
  const TemporaryFolder folder;
  const TokenData data({folder.write("a.txt", "\xff\x80")}, Format::kBytes, 1);

  EXPECT_THAT(sample(data, 0), ElementsAre(255, 128));
}

TEST(TokenData, FilesFollowEachOtherWhetherSmallOrMapped) {
  const TemporaryFolder folder;
  const std::string parts[] = {text(3, 1), text(200'000, 2), text(1, 3), text(70'001, 4)};
  std::string all;
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    folder.write("part" + std::to_string(i), parts[i]);
    all += parts[i];
  }
  const TokenData data({folder.path().string()}, Format::kAuto, 17);

  ASSERT_EQ(data.tokens(), static_cast<std::int64_t>(all.size()));
  ASSERT_EQ(data.samples(), static_cast<std::int64_t>((all.size() - 1) / 17));
  for (std::int64_t i = 0; i < data.samples(); ++i) {
    const auto* from = reinterpret_cast<const unsigned char*>(all.data()) + 17 * i;
    ASSERT_EQ(sample(data, i), Tokens(from, from + 18)) << "sample " << i;
  }
}

TEST(TokenData, BinFilesHoldLittleEndianUint16) {
  const TemporaryFolder folder;
  const TokenData data({folder.write("train.bin", std::string("\x01\x02\xff\xff\x00\x01", 6))}, Format::kAuto, 2);

  EXPECT_THAT(sample(data, 0), ElementsAre(0x0201, 65535, 256));
}

TEST(TokenData, TheHeaderOfLlmCIsSkipped) {
  const TemporaryFolder folder;
  folder.write("a.bin", llm_c(20240520, 1, 2, uint16s({7, 8})));
  folder.write("b.bin", uint16s({9}));
  const TokenData data({folder.path().string()}, Format::kAuto, 2);

  EXPECT_EQ(data.tokens(), 3);
  EXPECT_THAT(sample(data, 0), ElementsAre(7, 8, 9));
}

TEST(TokenData, TokensOf32BitsAreReadBareAndBehindTheHeaderOfLlmC) {
  const TemporaryFolder folder;
  const std::vector<std::uint32_t> tokens = {70000, 1, 4000000000};
  const std::string bytes(reinterpret_cast<const char*>(tokens.data()), 4 * tokens.size());
  const auto bare = folder.write("bare.bin", bytes), headed = folder.write("headed.bin", llm_c(20240801, 1, 3, bytes));

  EXPECT_THAT(sample(TokenData({bare}, Format::kUint32, 2), 0), ElementsAre(70000, 1, 4000000000));
  EXPECT_THAT(sample(TokenData({headed}, Format::kUint32, 2), 0), ElementsAre(70000, 1, 4000000000));
  EXPECT_THAT(sample(TokenData({headed}, Format::kAuto, 2), 0), ElementsAre(70000, 1, 4000000000));
}

TEST(TokenData, TheFormatMayBeForced) {
  const TemporaryFolder folder;
  const auto bin = folder.write("a.bin", "abcd"), txt = folder.write("a.txt", std::string("\x01\x00\x02\x00", 4));

  EXPECT_THAT(sample(TokenData({bin}, Format::kBytes, 3), 0), ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(sample(TokenData({txt}, Format::kUint16, 1), 0), ElementsAre(1, 2));
}

TEST(TokenData, DefectsOfFilesAreNamed) {
  const TemporaryFolder folder;
  const auto open = [](std::vector<std::string> paths, std::int64_t length = 1) {
    return [=] { TokenData(paths, Format::kAuto, length); };
  };
  const auto odd = folder.write("odd.bin", "abc"), short_one = folder.write("short.txt", "abc");
  const auto cut = folder.write("cut.bin", llm_c(20240520, 1, 3, uint16s({1, 2})));
  const auto wide = folder.write("wide.bin", llm_c(20240801, 7, 1, std::string(4, 'x')));
  const auto newer = folder.write("newer.bin", llm_c(20240520, 2, 1, uint16s({1})));

  EXPECT_THAT(open({odd}),
              ThrowsMessage<sdk::Error>("'" + odd + "' has 3 bytes, which is not a whole number of 16-bit tokens."));
  EXPECT_THAT(open({short_one}, 3), ThrowsMessage<sdk::Error>("'" + short_one +
                                                              "' holds 3 tokens; a sequence of 3 needs 3 + 1. "
                                                              "Give more data or a shorter sequence."));
  EXPECT_THAT(open({short_one}, 0), ThrowsMessage<sdk::Error>("the sequence length is 0; it must be at least 1."));
  EXPECT_THAT(open({cut}), ThrowsMessage<sdk::Error>("'" + cut +
                                                     "' has 2 tokens, but its header says 3: it "
                                                     "was cut off or joined."));
  EXPECT_THAT(
      [&] { TokenData({wide}, Format::kUint16, 1); },
      ThrowsMessage<sdk::Error>("'" + wide +
                                "' holds 32-bit tokens (llm.c header 20240801), and tokens of 16 bits are read. "
                                "Set the format to uint32, and name files of one kind."));
  EXPECT_THAT(open({newer}), ThrowsMessage<sdk::Error>("'" + newer +
                                                       "' has an llm.c header of version 2; "
                                                       "only version 1 is read."));
  EXPECT_THAT(open({short_one, odd}),
              ThrowsMessage<sdk::Error>("'" + odd + "' (.bin, 16-bit tokens) and '" + short_one +
                                        "' (text) do not go together. Name the files of one kind, or set the format "
                                        "to bytes or uint16."));
}

TEST(TokenData, AnIndexAmongOtherFilesIsNotReadAsText) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.txt", std::string(100, 'x')), index = folder.write("b.idx", std::string(100, 'x'));
  for (const std::vector<std::string>& paths :
       {std::vector<std::string>{file, index}, std::vector<std::string>{folder.path().string()}}) {
    EXPECT_THAT(
        [&] { TokenData(paths, TokenData::Format::kAuto, 10); },
        ThrowsMessage<sdk::Error>("'" + index +
                                  "' is the index of an indexed file, and goes together with nothing else. Name "
                                  ".idx files alone, or set the format to indexed for a folder of them, or to "
                                  "bytes."));
  }
  EXPECT_EQ(TokenData({file, index}, TokenData::Format::kBytes, 10).tokens(), 200);
}

TEST(TokenData, AFileThatMayNotBeReadIsNamed) {
  const TemporaryFolder folder;
  chmod(folder.path().c_str(), 0755);
  const auto closed = folder.write("closed.txt", "abc");
  chmod(closed.c_str(), 0);
  // The superuser may read everything, so step down for the call.
  const bool stepped_down = geteuid() == 0 && seteuid(65534) == 0;
  EXPECT_THAT([&] { TokenData({closed}, Format::kAuto, 1); },
              ThrowsMessage<sdk::Error>("'" + closed + "': Permission denied."));
  ASSERT_TRUE(!stepped_down || seteuid(0) == 0);
}

TEST(TokenData, ATokenBeyondTheVocabularyIsNamedWithItsPlace) {
  const TemporaryFolder folder;
  folder.write("a.bin", uint16s({0, 1, 2}));
  const auto second = folder.write("b.bin", uint16s({3, 999, 4}));
  TokenData data({folder.path().string()}, Format::kAuto, 5);
  data.set_vocabulary(500);

  EXPECT_THAT([&] { sample(data, 0); },
              ThrowsMessage<sdk::Error>("'" + second +
                                        "', token 1 is 999, but the model's vocabulary has 500 "
                                        "entries. Use the tokeniser that the model was made for, or a larger "
                                        "vocabulary."));
  data.set_vocabulary(1000);
  EXPECT_THAT(sample(data, 0), ElementsAre(0, 1, 2, 3, 999, 4));
}

TEST(TokenData, AFileShortenedWhileItIsReadIsAnErrorAndNoCrash) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.txt", text(100'000, 0));
  const TokenData data({file}, Format::kAuto, 99'999);
  ASSERT_EQ(truncate(file.c_str(), 10), 0);

  EXPECT_THAT([&] { sample(data, 0); },
              ThrowsMessage<sdk::Error>("'" + file +
                                        "' was shortened while it was being read: 100000 bytes at the "
                                        "start, 10 now."));
}

TEST(TokenData, AFileReplacedWhileItIsReadKeepsItsContent) {
  const TemporaryFolder folder;
  const auto content = text(100'000, 5);
  const auto file = folder.write("a.txt", content);
  const TokenData data({file}, Format::kAuto, 99'999);
  std::filesystem::rename(folder.write("b.txt", "other"), file);

  const auto* bytes = reinterpret_cast<const unsigned char*>(content.data());
  EXPECT_EQ(sample(data, 0), Tokens(bytes, bytes + content.size()));
}

TEST(TokenData, TheFingerprintFollowsContentAndNamesButNotThePlace) {
  const TemporaryFolder here, there;
  const auto print = [](const std::string& path) { return TokenData({path}, Format::kAuto, 4).fingerprint(); };
  for (const auto* folder : {&here, &there}) {
    folder->write("x/a", text(5000, 1));
    folder->write("x/b", text(3'000'000, 2));
  }
  const auto before = print((here / "x").string());

  EXPECT_EQ(print((there / "x").string()), before);
  there.write("x/a", text(5000, 3));
  EXPECT_NE(print((there / "x").string()), before) << "content of a small file";
  there.write("x/a", text(5000, 1));
  there.write("x/b", text(3'000'000, 3));
  EXPECT_NE(print((there / "x").string()), before) << "content of a large file";
  there.write("x/b", text(3'000'001, 2));
  EXPECT_NE(print((there / "x").string()), before) << "size";
  there.write("x/b", text(3'000'000, 2));
  std::filesystem::rename(there / "x/b", there / "x/c");
  EXPECT_NE(print((there / "x").string()), before) << "name";
}

}  // namespace
}  // namespace capstan::data

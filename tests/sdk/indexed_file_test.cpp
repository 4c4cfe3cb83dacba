#include "capstan/sdk/indexed_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "core/text/json.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::sdk {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Rows = std::vector<std::vector<std::int64_t>>;

std::string hex_of(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

class IndexedFile : public ::testing::Test {
 protected:
  std::string name() const { return (folder_.path() / "data").string(); }
  std::string bytes(const std::string& ending) const { return read_bytes(name() + ending); }
  void put(const std::string& ending, const std::string& bytes) const {
    std::ofstream(name() + ending, std::ios::binary | std::ios::trunc) << bytes;
  }

  void write(const Rows& rows, IndexedType type,
             IndexedWriter::Numbering numbering = IndexedWriter::Numbering::kDeepSpeed) const {
    IndexedWriter writer(name(), type, numbering);
    for (const auto& row : rows) {
      writer.append(row);
      writer.end_row();
    }
    writer.end_document();
    writer.finish();
  }
  Rows read() const {
    const IndexedRows file(name());
    file.check();
    Rows rows;
    for (std::int64_t i = 0; i < file.rows(); ++i) rows.push_back(file.row(i));
    return rows;
  }
  std::string refusal() const {
    try {
      IndexedRows(name()).check();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(IndexedFile, HasTheBytesThatDeepSpeedsAnalysisWrites) {
  // DeepSpeed 0.19.6, DataAnalyzer.run_reduce on 48 samples: index_to_metric of the metric "len".
  IndexedWriter writer(name(), type_for(1, 8));
  for (std::int64_t value = 1; value <= 8; ++value) {
    writer.append(std::array{value});
    writer.end_row();
  }
  writer.end_document();
  writer.end_document();  // files that are joined bring one each
  writer.finish();

  EXPECT_EQ(hex_of(bytes(".bin")), "0102030405060708");
  EXPECT_EQ(
      hex_of(bytes(".idx")),
      "4d4d494449445800000100000000000000010800000000000000030000000000000001000000010000000100000001000000010000000100"
      "0000010000000100000000000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000"
      "00000600000000000000070000000000000000000000000000000800000000000000"
      "0800000000000000");
}

TEST_F(IndexedFile, KeepsRowsOfEveryType) {
  const std::pair<IndexedType, std::vector<std::int64_t>> cases[] = {{IndexedType::kU8, {0, 255}},
                                                                     {IndexedType::kI8, {-128, 127}},
                                                                     {IndexedType::kI16, {-32768, 32767}},
                                                                     {IndexedType::kI32, {-2147483648LL, 2147483647}},
                                                                     {IndexedType::kI64, {INT64_MIN, INT64_MAX}},
                                                                     {IndexedType::kU16, {0, 65535}},
                                                                     {IndexedType::kU32, {0, 4294967295}},
                                                                     {IndexedType::kU64, {0, INT64_MAX}}};
  for (const auto& [type, ends] : cases) {
    const Rows rows = {{ends[0], 1, ends[1]}, {}, {2}, {ends[1], ends[0]}};
    write(rows, type);

    EXPECT_EQ(read(), rows) << name_of(type);
    EXPECT_EQ(IndexedRows(name()).type(), type);
    EXPECT_EQ(IndexedRows(name()).values(), 6);
    EXPECT_EQ(type_for(ends[0], ends[1]), type == IndexedType::kU64 ? IndexedType::kU64 : type);
  }
}

TEST_F(IndexedFile, TakesTheNumberEightAsUint16OfMegatronAndAsUint64OfDeepSpeed) {
  const Rows rows = {{1, 2, 60000}, {3}};
  write(rows, IndexedType::kU16, IndexedWriter::Numbering::kMegatron);
  EXPECT_EQ(bytes(".idx")[17], 8);
  EXPECT_EQ(IndexedRows(name()).type(), IndexedType::kU16);
  EXPECT_EQ(read(), rows);

  write(rows, IndexedType::kU64);
  EXPECT_EQ(bytes(".idx")[17], 8);
  EXPECT_EQ(IndexedRows(name()).type(), IndexedType::kU64);
  EXPECT_EQ(read(), rows);

  write(rows, IndexedType::kU16);
  EXPECT_EQ(bytes(".idx")[17], 6);
  EXPECT_EQ(read(), rows);
  EXPECT_THROW(IndexedWriter(name(), IndexedType::kU64, IndexedWriter::Numbering::kMegatron), Error);
}

TEST_F(IndexedFile, MayBeEmpty) {
  write({}, IndexedType::kU16);
  EXPECT_THAT(read(), IsEmpty());
  write({{}, {}}, IndexedType::kI64);
  EXPECT_THAT(read(), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST_F(IndexedFile, RefusesFloatsAndOtherFormatsByName) {
  write({{1, 2, 3}}, IndexedType::kI64);
  std::string index = bytes(".idx");
  index[17] = 6;
  put(".idx", index);
  EXPECT_THAT(refusal(),
              HasSubstr("data.idx: its values are float64 (type 6 of Megatron), and tokens are whole numbers."));
  index[17] = 9;
  put(".idx", index);
  EXPECT_THAT(refusal(),
              HasSubstr("data.idx: says that its values are of type 9, and types are numbered from 1 to 8."));
  put(".idx", "TNTIDX\0\0abc");
  EXPECT_THAT(refusal(), HasSubstr("data.idx: is an index of the legacy format TNTIDX."));
  put(".idx", std::string(100, 'x'));
  EXPECT_THAT(refusal(), HasSubstr("data.idx: is not an index: it does not begin with MMIDIDX."));
}

TEST_F(IndexedFile, RefusesAMultimodalDataSetByName) {
  write({{1, 2, 3}, {4}}, IndexedType::kI32);
  put(".idx", bytes(".idx") + std::string(2, '\1'));
  EXPECT_THAT(refusal(), HasSubstr("data.idx: has modes behind its documents: it is a multimodal data set"));
}

TEST_F(IndexedFile, NamesWhatDoesNotBelongTogether) {
  write({{1, 2, 3}, {4}}, IndexedType::kI32);
  const std::string values = bytes(".bin"), index = bytes(".idx");
  put(".bin", values.substr(1));
  EXPECT_THAT(refusal(), HasSubstr("data.bin: has 15 bytes, and "));
  EXPECT_THAT(refusal(),
              HasSubstr("data.idx says that the last of 2 rows has 1 values of int32 from byte 12 on: the two "
                        "do not belong together, or one was cut short."));
  put(".bin", values);
  put(".idx", index.substr(0, index.size() - 1));
  EXPECT_THAT(refusal(),
              HasSubstr("data.idx: says that it has 2 rows and 2 documents, and has 73 bytes: it was cut short."));
  put(".idx", index.substr(0, 20));
  EXPECT_THAT(refusal(), HasSubstr("data.idx: has 20 bytes, and the header of an index takes 34."));
  std::filesystem::remove(name() + ".idx");
  EXPECT_THAT(refusal(), HasSubstr("data.idx': No such file or directory."));
}

TEST_F(IndexedFile, NamesTheRowOrTheDocumentThatIsWrong) {
  write({{1, 2, 3}, {4}, {5, 6}}, IndexedType::kU8);
  std::string index = bytes(".idx");
  index[34] = 2;  // the first row has a value less
  put(".idx", index);
  EXPECT_THAT(refusal(), HasSubstr("data.idx: row 1 begins at byte 3 of "));
  index[34] = 3;
  index[34 + 3 * 12 + 8] = 7;
  put(".idx", index);
  EXPECT_THAT(refusal(), HasSubstr("data.idx: document 1 begins at row 7, behind 0 of 3 rows."));
}

/// Nothing that a file holds crashes a process, or is taken for rows that are not there.
TEST_F(IndexedFile, RefusesOrReadsAnyDamage) {
  write({{1, 2, 3}, {4}, {}, {5, 6}}, IndexedType::kI16);
  const std::string values = bytes(".bin"), index = bytes(".idx");
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = index;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    if (i % 3 == 0) damaged.resize(random() % damaged.size());
    put(".idx", damaged);
    try {
      const IndexedRows file(name());
      file.check();
      for (std::int64_t row = 0; row < file.rows(); ++row) {
        ASSERT_LE(file.begin(row) + file.size(row), file.values()) << i;
        file.row(row);
      }
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("data."));
    }
  }
}

TEST_F(IndexedFile, NoticesAFileThatIsShortenedWhileItIsRead) {
  write({{1, 2, 3}, {4}}, IndexedType::kI32);
  const IndexedRows file(name());
  std::filesystem::resize_file(name() + ".bin", 4);
  EXPECT_THROW(file.row(1), Error);
}

TEST_F(IndexedFile, IsNotThereUntilItIsWhole) {
  {
    IndexedWriter writer(name(), IndexedType::kU8);
    writer.append(std::array<std::int64_t, 1>{1});
    writer.end_row();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_THROW(IndexedWriter((folder_.path() / "nowhere/data").string(), IndexedType::kU8), Error);
}

TEST_F(IndexedFile, HasOneWriterAtATime) {
  const auto write_rows = [](IndexedWriter& writer, std::int64_t value) {
    writer.append(std::array<std::int64_t, 1>{value});
    writer.end_row();
    writer.end_document();
    writer.finish();
  };
  {
    IndexedWriter first(name(), IndexedType::kU8);
    try {
      const IndexedWriter second(name(), IndexedType::kU8);
      FAIL() << "two writers of one file";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), name() + ".idx.part: another process is writing '" + name() +
                                  ".idx'. Wait until it has ended, or choose another name.");
    }
    write_rows(first, 1);
  }
  EXPECT_THAT(IndexedRows(name()).row(0), ElementsAre(1));
  std::ofstream(name() + ".idx.part") << "left by a process that was killed";
  IndexedWriter third(name(), IndexedType::kU8);
  write_rows(third, 2);
  EXPECT_THAT(IndexedRows(name()).row(0), ElementsAre(2));
}

TEST_F(IndexedFile, NamesAFullDisk) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "there is no device /dev/full here";
  std::filesystem::create_symlink("/dev/full", name() + ".bin.part");
  IndexedWriter writer(name(), IndexedType::kU8);
  try {
    writer.append(std::vector<std::int64_t>(1 << 21, 1));
    writer.end_row();
    writer.end_document();
    writer.finish();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.bin.part: cannot be written: No space left on device."));
  }
}

/// Files that the builders of DeepSpeed 0.19.6 and megatron-core 0.16.1 wrote, of the same rows in every type that they
/// have; documents end behind rows 2 and 4.
TEST_F(IndexedFile, ReadsWhatOtherPackagesWroteAndWritesTheirBytes) {
  const Json golden = Json::parse(read_bytes(CAPSTAN_TEST_SOURCE_DIR "/tests/sdk/indexed_golden.json"));
  std::size_t compared = 0;
  for (const Json& one : golden.at("cases").as_array()) {
    const std::string writer = one.at("writer").as_string(), type = one.at("type").as_string();
    SCOPED_TRACE(writer + " " + type);
    put(".idx", bytes_of(one.at("idx").as_string()));
    put(".bin", bytes_of(one.at("bin").as_string()));
    Rows wanted;
    for (const Json& row : one.at("rows").as_array()) {
      wanted.emplace_back();
      for (const Json& value : row.as_array()) wanted.back().push_back(value.as_integer());
    }
    const IndexedRows file(name());
    EXPECT_EQ(name_of(file.type()), type);
    EXPECT_EQ(read(), wanted);
    ASSERT_EQ(file.documents(), 3);
    EXPECT_EQ(file.document(1), 2);
    EXPECT_EQ(file.document(2), 4);

    const bool megatron = writer.starts_with("megatron");
    IndexedWriter ours(name(), file.type(),
                       megatron ? IndexedWriter::Numbering::kMegatron : IndexedWriter::Numbering::kDeepSpeed);
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      ours.append(wanted[row]);
      ours.end_row();
      if (row % 2 == 1) ours.end_document();
    }
    ours.finish();
    EXPECT_EQ(hex_of(bytes(".idx")), one.at("idx").as_string());
    EXPECT_EQ(hex_of(bytes(".bin")), one.at("bin").as_string());
    ++compared;
  }
  EXPECT_EQ(compared, 14u);
}

}  // namespace
}  // namespace capstan::sdk

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "capstan/sdk/indexed_file.hpp"
#include "capstan/sdk/packed_rows.hpp"
#include "core/data/dataset.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using sdk::IndexedType;
using sdk::IndexedWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tokens = std::vector<std::int64_t>;
using Documents = std::vector<Tokens>;

void write_documents(const std::string& name, const Documents& documents, IndexedType type = IndexedType::kU16,
                     IndexedWriter::Numbering numbering = IndexedWriter::Numbering::kDeepSpeed) {
  IndexedWriter writer(name, type, numbering);
  for (const Tokens& document : documents) {
    writer.append(document);
    writer.end_row();
    writer.end_document();
  }
  writer.finish();
}

/// 0, 1, 2, ... in documents of these sizes.
Documents counting(const std::vector<std::int64_t>& sizes) {
  Documents documents;
  std::int64_t next = 0;
  for (const std::int64_t size : sizes) {
    Tokens& document = documents.emplace_back(static_cast<std::size_t>(size));
    std::iota(document.begin(), document.end(), next);
    next += size;
  }
  return documents;
}

Tokens row(const Batch& batch, const char* name, std::int64_t row) {
  const at::Tensor& tensor = batch.tensors.at(name);
  const auto* from = tensor.const_data_ptr<std::int64_t>() + row * tensor.size(1);
  return {from, from + tensor.size(1)};
}

class IndexedDataset : public ::testing::Test {
 protected:
  Dataset open(const std::vector<std::string>& paths, std::int64_t length, const std::string& documents = "joined",
               std::int64_t vocabulary = 0) const {
    Json params = Json::object();
    params["documents"] = documents;
    return {Registry(PluginIndex::scan()).create("test", "dataset", "indexed", params, model_host()),
            {.paths = paths, .sequence_length = length, .vocabulary = vocabulary}};
  }
  std::string name(const std::string& file) const { return (folder_ / file).string(); }

  test::TemporaryFolder folder_;
};

TEST_F(IndexedDataset, JoinedDocumentsAreOneRowOfTokensCutIntoSamples) {
  write_documents(name("a"), counting({5, 3, 4}));  // 12 tokens: floor(11 / 4) samples
  const Dataset data = open({name("a.idx")}, 4);
  EXPECT_EQ(data.samples(), 2);
  EXPECT_EQ(data.sequence_length(), 4);
  const std::int64_t samples[] = {1, 0};
  const Batch batch = data.read(samples);
  EXPECT_THAT(row(batch, "input_ids", 0), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(row(batch, "labels", 0), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(row(batch, "input_ids", 1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(row(batch, "labels", 1), ElementsAre(1, 2, 3, 4));
}

TEST_F(IndexedDataset, SamplesGoOnFromOneFileToTheNextWhateverTheirTypesAndNumbers) {
  std::filesystem::create_directory(folder_ / "corpus");
  write_documents(name("corpus/a"), {{0, 1, 2}}, IndexedType::kI32);
  write_documents(name("corpus/b"), {{3, 4}, {5}}, IndexedType::kU16, IndexedWriter::Numbering::kMegatron);
  write_documents(name("corpus/c"), {{6}}, IndexedType::kI64);
  for (const std::vector<std::string>& paths :
       {std::vector<std::string>{name("corpus")}, {name("corpus/a"), name("corpus/b.bin"), name("corpus/c.idx")}}) {
    const Dataset data = open(paths, 6);
    const std::int64_t first[] = {0};
    EXPECT_THAT(row(data.read(first), "labels", 0), ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST_F(IndexedDataset, SeparateDocumentsAreCutOrFilledUpAndTheSmallestLeftOut) {
  write_documents(name("a"), {{1}, {10, 11, 12, 13, 14, 15}, {}, {20, 21}});
  write_documents(name("b"), {{30, 31, 32}});
  const Dataset data = open({name("a"), name("b")}, 4, "separate");
  EXPECT_EQ(data.samples(), 3);
  const std::int64_t samples[] = {0, 1, 2};
  const Batch batch = data.read(samples);
  EXPECT_THAT(row(batch, "input_ids", 0), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(row(batch, "labels", 0), ElementsAre(11, 12, 13, 14));
  EXPECT_THAT(row(batch, "input_ids", 1), ElementsAre(20, 0, 0, 0));
  EXPECT_THAT(row(batch, "labels", 1), ElementsAre(21, -100, -100, -100));
  EXPECT_THAT(row(batch, "input_ids", 2), ElementsAre(30, 31, 0, 0));
  EXPECT_THAT(row(batch, "labels", 2), ElementsAre(31, 32, -100, -100));
}

TEST_F(IndexedDataset, TheFingerprintIsOfTheContentAndNotOfTheFolder) {
  std::filesystem::create_directory(folder_ / "elsewhere");
  const Documents documents = counting({5000});
  Documents other = documents;
  ++other[0][4321];
  write_documents(name("a"), documents);
  write_documents(name("elsewhere/a"), documents);
  const std::string fingerprint = open({name("a")}, 8).fingerprint();
  EXPECT_EQ(fingerprint.size(), 16u);
  EXPECT_EQ(open({name("elsewhere/a")}, 8).fingerprint(), fingerprint);
  EXPECT_NE(open({name("a")}, 8, "separate").fingerprint(), fingerprint);
  write_documents(name("elsewhere/a"), other);
  EXPECT_NE(open({name("elsewhere/a")}, 8).fingerprint(), fingerprint);
}

TEST_F(IndexedDataset, ATokenThatTheModelDoesNotKnowIsNamedWithItsFileAndPlace) {
  write_documents(name("a"), {{1, 2, 3, 500, 5}});
  const std::int64_t first[] = {0};
  const Dataset data = open({name("a")}, 4, "joined", 300);
  EXPECT_THAT(
      [&] { data.read(first); },
      ThrowsMessage<RuntimeFault>(HasSubstr(name("a.bin") + ": token 3 is 500, and the model's vocabulary has 300 "
                                                            "entries. Use the tokeniser that the model was made "
                                                            "for.")));
  write_documents(name("b"), {{1, 2, -3}}, IndexedType::kI32);
  const Dataset negative = open({name("b")}, 2);
  EXPECT_THAT([&] { negative.read(first); },
              ThrowsMessage<RuntimeFault>(HasSubstr(name("b.bin") + ": token 2 is -3, and tokens are not negative.")));
}

TEST_F(IndexedDataset, ATokenOfTheRecordThatTheModelHasNotIsNamedBeforeAnyIsRead) {
  const std::string name = (folder_ / "a").string();
  write_documents(name, counting({5, 5}));
  folder_.write("a.idx.json", R"({"format": "uint16", "tokens": 10, "largest_token": 9})");
  EXPECT_EQ(open({name}, 4, "joined", 10).samples(), 2);
  EXPECT_THAT([&] { open({name}, 4, "joined", 9); },
              ThrowsMessage<RuntimeFault>(HasSubstr("'" + name + ".idx' has token 9, as '" + name +
                                                    ".idx.json' says, but the model's vocabulary has 9 entries.")));
}

TEST_F(IndexedDataset, LabelsAreThoseThatALossMaskCounts) {
  const std::string name = (folder_ / "a").string();
  write_documents(name, counting({5, 4, 3, 2}));  // 0 to 4, 5 to 8, 9 to 11, 12 and 13
  // Tokens 0, 2, 4 of the first, 5 of the second, 10 and 11 of the third, 13 of the last: bits of two bytes.
  folder_.write("a.loss", std::string("\x35\x2C", 2));
  const Dataset data = open({name}, 4, "separate");
  ASSERT_EQ(data.samples(), 3);  // the second has its only counted token in front, where no label stands
  const Batch batch = data.read(std::vector<std::int64_t>{0, 1, 2});
  EXPECT_THAT(row(batch, "labels", 0), ElementsAre(-100, 2, -100, 4));
  EXPECT_THAT(row(batch, "input_ids", 1), ElementsAre(9, 10, 0, 0));
  EXPECT_THAT(row(batch, "labels", 1), ElementsAre(10, 11, -100, -100));
  EXPECT_THAT(row(batch, "labels", 2), ElementsAre(13, -100, -100, -100));
  EXPECT_THAT([&] { open({name}, 4); },
              ThrowsMessage<RuntimeFault>(
                  HasSubstr("'" + name +
                            "' has a loss mask, and a sample of joined documents may have no token that the loss "
                            "counts. Set capstan.data.dataset to {\"type\": \"indexed\", \"params\": {\"documents\": "
                            "\"separate\"}}, or remove the .loss file.")));
  folder_.write("a.loss", "x");
  EXPECT_THAT([&] { open({name}, 4, "separate"); },
              ThrowsMessage<RuntimeFault>(
                  HasSubstr(name + ".loss: has 1 bytes, and a bit for each of the 14 tokens of " + name +
                            ".bin takes 2: it is the mask of other tokens. Make both again, or remove it.")));
  folder_.write("a.loss", std::string("\x01\x00", 2));
  EXPECT_THAT([&] { open({name}, 4, "separate"); },
              ThrowsMessage<RuntimeFault>(
                  HasSubstr("none of its documents has a token behind its first that the loss counts.")));
}

/// Writes NAME.rows of rows of `length` tokens with so many documents each.
void write_rows(const std::string& name, std::int64_t length, const std::vector<std::int64_t>& rows) {
  sdk::PackedRowsWriter writer(name, length);
  for (const std::int64_t documents : rows) writer.append(documents);
  writer.finish();
}

std::vector<std::int32_t> document_ids(const Batch& batch, std::int64_t row) {
  const at::Tensor& tensor = batch.tensors.at("document_ids");
  const auto* from = tensor.const_data_ptr<std::int32_t>() + row * tensor.size(1);
  return {from, from + tensor.size(1)};
}

TEST_F(IndexedDataset, DocumentsOfARowKeepTheirNumbersAndPlacesAndNoLabelLeadsIntoTheNext) {
  write_documents(name("a"), counting({4, 2, 3}));  // 0 to 3, 4 and 5; 6 to 8
  write_rows(name("a"), 7, {2, 1});
  write_documents(name("b"), {{20, 21}, {30, 31, 32, 33, 34, 35, 36}});
  write_rows(name("b"), 7, {1, 1});
  for (const char* documents : {"auto", "packed"}) {
    const Dataset data = open({name("a"), name("b")}, 16, documents);
    ASSERT_EQ(data.samples(), 4);
    EXPECT_EQ(data.sequence_length(), 7);
    EXPECT_EQ(data.facts().at("required"), Json::parse(R"(["document_ids", "position_ids"])"));
    const Batch batch = data.read(std::vector<std::int64_t>{0, 3, 1});
    EXPECT_THAT(row(batch, "input_ids", 0), ElementsAre(0, 1, 2, 3, 4, 5, 0));
    EXPECT_THAT(row(batch, "labels", 0), ElementsAre(1, 2, 3, -100, 5, -100, -100));
    EXPECT_THAT(document_ids(batch, 0), ElementsAre(0, 0, 0, 0, 1, 1, -1));
    EXPECT_THAT(row(batch, "position_ids", 0), ElementsAre(0, 1, 2, 3, 0, 1, 0));
    EXPECT_THAT(row(batch, "input_ids", 1), ElementsAre(30, 31, 32, 33, 34, 35, 36));
    EXPECT_THAT(row(batch, "labels", 1), ElementsAre(31, 32, 33, 34, 35, 36, -100));
    EXPECT_THAT(row(batch, "labels", 2), ElementsAre(7, 8, -100, -100, -100, -100, -100));
    EXPECT_THAT(row(batch, "position_ids", 2), ElementsAre(0, 1, 2, 0, 1, 2, 3));
  }
  EXPECT_EQ(open({name("a")}, 4, "separate").samples(), 3);
  EXPECT_EQ(open({name("a")}, 4).samples(), 2);
  EXPECT_NE(open({name("a")}, 7, "packed").fingerprint(), open({name("a")}, 7).fingerprint());
}

TEST_F(IndexedDataset, ALossMaskActsOnPackedDocumentsAndRowsWithoutALabelAreLeftOut) {
  write_documents(name("a"), counting({3, 2, 3, 4}));
  write_rows(name("a"), 8, {2, 1, 1});
  folder_.write("a.loss", std::string("\x34\x0C", 2));  // tokens 2, 4, 5, 10 and 11
  const Dataset data = open({name("a")}, 8, "auto");
  ASSERT_EQ(data.samples(), 2);  // the row of tokens 5 to 7 counts none that a label stands for
  const Batch batch = data.read(std::vector<std::int64_t>{0, 1});
  EXPECT_THAT(row(batch, "labels", 0), ElementsAre(-100, 2, -100, 4, -100, -100, -100, -100));
  EXPECT_THAT(row(batch, "labels", 1), ElementsAre(-100, 10, 11, -100, -100, -100, -100, -100));
}

TEST_F(IndexedDataset, DocumentsOfALossMaskAreSeparateUnlessTheParameterSaysOtherwise) {
  write_documents(name("a"), counting({3, 3}));
  folder_.write("a.loss", "\x3F");
  EXPECT_EQ(open({name("a")}, 2, "auto").samples(), 2);
}

TEST_F(IndexedDataset, RowsThatAreOfOtherTokensAreNamed) {
  write_documents(name("a"), counting({4, 2}));
  const auto refused = [&](const std::vector<std::string>& files, const std::string& documents,
                           const std::string& text) {
    std::vector<std::string> paths;
    for (const std::string& file : files) paths.push_back(name(file));
    EXPECT_THAT([&] { open(paths, 6, documents); }, ThrowsMessage<RuntimeFault>(HasSubstr(text)));
  };
  refused({"a"}, "packed",
          "'" + name("a") +
              "' has no .rows file beside it that says which documents share a row. Make it with 'capstan data chat "
              "--pack LENGTH', or take \"documents\": \"separate\".");
  write_rows(name("a"), 7, {2});
  refused({"a"}, "auto",
          "'" + name("a") +
              "' is packed into rows of 7 tokens, and a sample has 6. Give --seq 7 where the model has as many "
              "positions, or pack again with --pack 6.");
  write_rows(name("a"), 5, {2});
  refused(
      {"a"}, "auto",
      name("a.rows") + ": row 0 has 6 tokens, and room for 5: it is of other tokens. Make both again, or remove it.");
  write_rows(name("a"), 6, {2, 1});
  refused({"a"}, "auto",
          name("a.rows") + ": has rows of 3 documents, and " + name("a.idx") +
              " has 2: it is of other tokens. Make both again, or remove it.");
  folder_.write("a.rows", "CAPROWS1 and more than a header");
  refused({"a"}, "auto", name("a.rows") + ": has 31 bytes, and says that it has ");
  folder_.write("a.rows", "rows");
  refused({"a"}, "auto",
          name("a.rows") + ": does not begin with CAPROWS1, and so does not say which documents share a row.");
  write_rows(name("a"), 6, {2});
  write_documents(name("b"), counting({4, 2}));
  refused({"a", "b"}, "auto",
          name("b.idx") + ": has no .rows file beside it, and " + name("a.idx") +
              " has one. Pack all files or none; \"documents\": \"separate\" takes each document by itself.");
}

TEST_F(IndexedDataset, WhatCannotBeReadIsSaidInASentence) {
  const auto refused = [&](const std::string& path, std::int64_t length, const std::string& documents,
                           const std::string& text) {
    EXPECT_THAT([&] { open({path}, length, documents); }, ThrowsMessage<RuntimeFault>(HasSubstr(text)));
  };
  write_documents(name("a"), counting({1, 1, 1}));
  refused(name("a"), 3, "joined", "holds 3 tokens; a sequence of 3 needs 3 + 1. Give more data or a shorter sequence.");
  refused(name("a"), 3, "separate", "'" + name("a") + "': none of its documents has two tokens.");
  refused(name("a"), 0, "joined", "the tokens a sample are not known. Set capstan.data.sequence_length.");
  std::filesystem::create_directory(folder_ / "empty");
  refused(name("empty"), 3, "joined", "folder '" + name("empty") + "' holds no .idx file.");
  refused(name("missing"), 3, "joined", "'" + name("missing.idx") + "': No such file or directory.");
  folder_.write("old.idx", std::string("TNTIDX\0\0", 8) + std::string(40, '\0'));
  folder_.write("old.bin", "1234");
  refused(name("old"), 3, "joined", name("old.idx") + ": is an index of the legacy format TNTIDX.");
}

TEST_F(IndexedDataset, ASampleBeyondTheLastIsRefused) {
  write_documents(name("a"), counting({9}));
  const std::int64_t beyond[] = {2};
  const Dataset data = open({name("a")}, 4);
  EXPECT_THAT([&] { data.read(beyond); },
              ThrowsMessage<RuntimeFault>(HasSubstr("sample 2 was asked for, and there are 2.")));
}

}  // namespace
}  // namespace capstan

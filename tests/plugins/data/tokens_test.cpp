#include <gmock/gmock.h>

#include "core/data/batch_order.hpp"
#include "core/engine/initialize.hpp"
#include "core/errors.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Bytes that differ from place to place and from seed to seed.
std::string text(std::size_t size, unsigned seed) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i * 31 + i / 251 + seed) % 256);
  return out;
}

Dataset tokens(const std::string& path, std::int64_t length, std::int64_t vocabulary = 0) {
  Registry registry(PluginIndex::scan());
  return Dataset(registry.create("test", "dataset", "tokens", Json::parse(R"({"format": "auto"})"), model_host()),
                 {.paths = {path}, .sequence_length = length, .vocabulary = vocabulary});
}

TEST(Tokens, RowsAreConsecutiveInTheOrderAndLabelsAreOneTokenLater) {
  const TemporaryFolder folder;
  const auto content = text(64 * 10 + 5, 7);
  const Dataset data = tokens(folder.write("a.txt", content), 64);
  const BatchOrder order(data.samples(), 1, true);

  const Batch batch = ordered_batch(data, order, 23, 3);

  const auto& inputs = batch.tensors.at("input_ids");
  const auto& labels = batch.tensors.at("labels");
  ASSERT_EQ(inputs.sizes(), (std::vector<std::int64_t>{3, 64}));
  ASSERT_EQ(labels.sizes(), (std::vector<std::int64_t>{3, 64}));
  ASSERT_EQ(inputs.scalar_type(), at::kLong);
  for (std::int64_t row = 0; row < 3; ++row) {
    const auto begin = 64 * order.sample(23 + row);
    for (std::int64_t i = 0; i < 64; ++i) {
      const auto at = static_cast<std::size_t>(begin + i);
      ASSERT_EQ(inputs.data_ptr<std::int64_t>()[64 * row + i], static_cast<unsigned char>(content[at]));
      ASSERT_EQ(labels.data_ptr<std::int64_t>()[64 * row + i], static_cast<unsigned char>(content[at + 1]));
    }
  }
}

// The order of the recorded runs: at optimizer step s, micro-step m of gas, rank r of world, row j of the micro-batch
// stands sample (((s*gas + m)*world + r)*micro + j) mod n_samples.
TEST(Tokens, WithoutShufflingOneProcessSeesTheSamplesOfTheRecordedRuns) {
  constexpr std::int64_t kGas = 2, kMicro = 4, kSamples = 13, kLength = 8;
  const TemporaryFolder folder;
  const auto content = text(kSamples * kLength + 1, 9);
  const Dataset data = tokens(folder.write("corpus.txt", content), kLength);
  ASSERT_EQ(data.samples(), kSamples);
  const BatchOrder order(data.samples(), 0, false);

  std::int64_t global_samples = 0;
  for (std::int64_t s = 0; s < 5; ++s) {
    for (std::int64_t m = 0; m < kGas; ++m) {
      const Batch batch = ordered_batch(data, order, global_samples, kMicro);
      global_samples += kMicro;
      for (std::int64_t j = 0; j < kMicro; ++j) {
        const auto begin = static_cast<std::size_t>(((s * kGas + m) * kMicro + j) % kSamples * kLength);
        for (std::int64_t i = 0; i < kLength; ++i) {
          ASSERT_EQ(batch.tensors.at("input_ids").data_ptr<std::int64_t>()[j * kLength + i],
                    static_cast<unsigned char>(content[begin + static_cast<std::size_t>(i)]));
        }
      }
    }
  }
}

TEST(Tokens, TellHowMuchTheyAreAndNameWhatIsWrongWithTheData) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.txt", text(100, 1));
  const Dataset data = tokens(file, 10);
  EXPECT_EQ(data.samples(), 9);
  EXPECT_EQ(data.sequence_length(), 10);
  EXPECT_EQ(data.facts().at("tokens").as_integer(), 100);
  EXPECT_EQ(data.fingerprint().size(), 16u);
  EXPECT_EQ(data.bytes_per_token(), 1.0);
  EXPECT_FALSE(tokens(folder.write("a.bin", text(100, 1)), 10).bytes_per_token());

  EXPECT_THAT([&] { tokens((folder / "none").string(), 10); },
              ThrowsMessage<RuntimeFault>("data: '" + (folder / "none").string() + "': No such file or directory."));
  EXPECT_THAT([&] { tokens(file, 10, 5).read(std::vector<std::int64_t>{0}); },
              ThrowsMessage<RuntimeFault>(HasSubstr("but the model's vocabulary has 5 entries.")));
}

std::string uint32s(const std::vector<std::uint32_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), 4 * tokens.size()};
}

TEST(Tokens, TakeTheFormatFromTheRecordBesideThem) {
  const TemporaryFolder folder;
  const auto file = folder.write("data/a.bin", uint32s({70000, 1, 2, 3, 4}));
  folder.write("data/a.bin.json", R"({"format": "uint32", "tokens": 5, "largest_token": 70000})");
  for (const std::string& path : {file, (folder.path() / "data").string()}) {
    const Dataset data = tokens(path, 4, 70001);
    const Batch batch = ordered_batch(data, BatchOrder(1, 0, false), 0, 1);
    EXPECT_EQ(batch.tensors.at("input_ids").data_ptr<std::int64_t>()[0], 70000);
    EXPECT_EQ(batch.tensors.at("labels").data_ptr<std::int64_t>()[3], 4);
  }
}

TEST(Tokens, NameATokenOfTheRecordThatTheModelHasNotBeforeAnyIsRead) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.bin", uint32s({70000, 1, 2, 3, 4}));
  folder.write("a.bin.json", R"({"format": "uint32", "tokens": 5, "largest_token": 70000})");
  EXPECT_THAT([&] { tokens(file, 4, 70000); },
              ThrowsMessage<RuntimeFault>(
                  HasSubstr("'" + file + "' has token 70000, as '" + file +
                            ".json' says, but the model's vocabulary has 70000 "
                            "entries. Use the tokeniser that the model was made for, or a larger vocabulary.")));
}

TEST(Tokens, NameARecordThatIsNotThatOfTheFile) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.bin", uint32s({1, 2, 3, 4, 5}));
  const auto fault = [&](const std::string& record, const std::string& message) {
    folder.write("a.bin.json", record);
    EXPECT_THAT([&] { tokens(file, 4); }, ThrowsMessage<RuntimeFault>(HasSubstr(message)));
  };
  fault(R"({"format": "uint32", "tokens": 6, "largest_token": 5})",
        "'" + file + "' has 5 tokens, but '" + file +
            ".json' says 6: it was cut off or replaced. Tokenize again, or remove the record.");
  fault("[",
        "'" + file +
            ".json' is not the record of tokens that 'capstan data tokenize' writes. Tokenize again, or remove it.");
  fault(R"({"format": 7, "tokens": "x", "largest_token": 5})", ".json' is not the record of tokens");
  // Another program's file says nothing of the tokens.
  folder.write("a.bin.json", R"({"name": "mine"})");
  EXPECT_EQ(tokens(file, 4).samples(), 2);
  Registry registry(PluginIndex::scan());
  folder.write("a.bin.json", R"({"format": "uint32", "tokens": 5, "largest_token": 5})");
  EXPECT_THAT(
      [&] {
        Dataset(registry.create("test", "dataset", "tokens", Json::parse(R"({"format": "uint16"})"), model_host()),
                {.paths = {file}, .sequence_length = 4, .vocabulary = 0});
      },
      ThrowsMessage<RuntimeFault>(HasSubstr("'" + file + "' holds tokens of uint32, as '" + file +
                                            ".json' says, and tokens of 16 bits are read. Set the format to uint32, "
                                            "and name files of one kind.")));
}

}  // namespace
}  // namespace capstan

#include "core/data/metric_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "capstan/sdk/indexed_file.hpp"
#include "core/errors.hpp"
#include "core/text/json.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using sdk::IndexedRows;
using test::read_bytes;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

/// Shards of a few samples that hold these numbers.
MetricShards shards_of(const std::filesystem::path& folder, const Numbers& numbers, std::int64_t in_a_shard = 7) {
  const auto samples = static_cast<std::int64_t>(numbers.size());
  const MetricShards shards(folder, 42, samples, 0, in_a_shard);
  for (std::int64_t shard = 0; shard < shards.count(); ++shard) {
    const auto first = numbers.begin() + shards.first_sample(shard);
    shards.write(shard, Numbers(first, first + shards.samples_of(shard)));
  }
  return shards;
}

std::string hex_of(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

Numbers integers(const Json& list) {
  Numbers out;
  for (const Json& one : list.as_array()) out.push_back(one.as_integer());
  return out;
}

TEST(MetricIndex, HasTheBytesThatDeepSpeedsAnalysisWrites) {
  const Json recorded = Json::parse(read_bytes(CAPSTAN_TEST_SOURCE_DIR "/tests/core/data/analyzer_recording.json"));
  for (const Json& metric : recorded.at("metrics").as_array()) {
    const TemporaryFolder folder;
    const std::string name = metric.at("name").as_string();
    const Numbers values = integers(metric.at("values"));
    write_metric_index(folder.path(), name, shards_of(folder.path(), values), 48);

    for (const auto& [file, size] : metric.at("sizes").as_object()) {
      EXPECT_EQ(std::filesystem::file_size(folder / file), static_cast<std::uintmax_t>(size.as_integer())) << file;
    }
    for (const auto& [file, wanted] : metric.at("hex").as_object()) {
      // "index_to_metric_idx"
      const std::string path = name + "_" + file.substr(0, file.size() - 4) + "." + file.substr(file.size() - 3);
      EXPECT_EQ(hex_of(read_bytes(folder / path)), wanted.as_string()) << path;
    }
    const IndexedRows merged((folder / (name + "_index_to_sample_percentile_merged")).string());
    const Json& rows = metric.at("percentile");
    ASSERT_EQ(merged.rows(), static_cast<std::int64_t>(rows.size()));
    for (std::size_t row = 0; row < rows.size(); ++row) {
      EXPECT_EQ(merged.row(static_cast<std::int64_t>(row)), integers(rows.as_array()[row]));
    }
    const IndexedRows by_sample((folder / (name + "_sample_to_metric")).string());
    for (std::int64_t i = 0; i < 48; ++i) {
      EXPECT_THAT(by_sample.row(i), ElementsAre(values[static_cast<std::size_t>(i)]));
    }
  }
}

TEST(MetricIndex, HasEverySampleOnceByItsNumber) {
  std::mt19937 random(3);
  for (const std::int64_t bound : {1, 5, 1000, 2'000'000'000}) {
    const TemporaryFolder folder;
    Numbers values(1500);
    for (std::int64_t& value : values)
      value = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound)) - bound / 3;
    write_metric_index(folder.path(), "m", shards_of(folder.path(), values, 512), 1500);

    std::map<std::int64_t, Numbers> wanted;
    for (std::size_t i = 0; i < values.size(); ++i) wanted[values[i]].push_back(static_cast<std::int64_t>(i));
    const IndexedRows to_metric((folder / "m_index_to_metric").string()),
        to_sample((folder / "m_index_to_sample").string());
    const IndexedRows merged((folder / "m_index_to_sample_percentile_merged").string());
    for (const IndexedRows* file : {&to_metric, &to_sample, &merged}) file->check();
    ASSERT_EQ(to_metric.rows(), static_cast<std::int64_t>(wanted.size()));
    std::int64_t row = 0;
    Numbers in_order;
    for (const auto& [value, samples] : wanted) {
      ASSERT_THAT(to_metric.row(row), ElementsAre(value));
      ASSERT_EQ(to_sample.row(row), samples);
      in_order.insert(in_order.end(), samples.begin(), samples.end());
      ++row;
    }
    const auto together = std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted.size()) / 100);
    EXPECT_EQ(merged.rows(), (static_cast<std::int64_t>(wanted.size()) + together - 1) / together);
    Numbers all(1500);
    merged.read(0, 1500, all.data());
    EXPECT_EQ(all, in_order);
  }
}

TEST(MetricIndex, DoesNotDependOnTheShards) {
  const TemporaryFolder one, other;
  Numbers values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i * i % 17);
  write_metric_index(one.path(), "m", shards_of(one.path(), values, 100), 100);
  write_metric_index(other.path(), "m", shards_of(other.path(), values, 3), 100);
  for (const char* file :
       {"m_index_to_sample.idx", "m_index_to_sample.bin", "m_index_to_metric.bin", "m_sample_to_metric.bin"}) {
    EXPECT_EQ(read_bytes(one / file), read_bytes(other / file)) << file;
  }
}

TEST(MetricIndex, SumsVectorsOverShards) {
  const TemporaryFolder folder;
  const MetricShards shards(folder.path(), 1, 20, /*width=*/7, 10);
  shards.write(0, Numbers{5, 2, 1, 0, 0, 9, 4});
  shards.write(1, Numbers{0, 0, 10, 8, 9, 0, 0});
  const Numbers sums = summed(shards);
  EXPECT_THAT(sums, ElementsAre(5, 2, 11, 8, 9, 9, 4));

  write_metric_value(folder.path(), "hist", sums);
  const IndexedRows file((folder / "hist_metric_value").string());
  EXPECT_EQ(file.row(0), sums);
  EXPECT_EQ(file.type(), sdk::IndexedType::kU8);
  // As DeepSpeed's, whose file of seven sums has 7 and 62 bytes.
  EXPECT_EQ(std::filesystem::file_size(folder / "hist_metric_value.bin"), 7u);
  EXPECT_EQ(std::filesystem::file_size(folder / "hist_metric_value.idx"), 62u);
}

TEST(MetricShards, CountOnlyWhereTheyAreWholeAndOfTheSameAnalysis) {
  const TemporaryFolder folder;
  const MetricShards shards(folder.path(), 42, 25, 0, 10);
  EXPECT_EQ(shards.count(), 3);
  EXPECT_EQ(shards.samples_of(2), 5);
  EXPECT_FALSE(shards.is_done(2));
  shards.write(2, Numbers{1, 2, 3, 4, 5});
  EXPECT_TRUE(shards.is_done(2));
  EXPECT_THAT(shards.read(2), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_FALSE(MetricShards(folder.path(), 43, 25, 0, 10).is_done(2)) << "other data";
  EXPECT_FALSE(MetricShards(folder.path(), 42, 26, 0, 10).is_done(2)) << "more samples";

  const std::string bytes = read_bytes(folder / "shard_2");
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::string damaged = bytes;
    damaged[at] ^= 4;
    folder.write("shard_2", damaged);
    EXPECT_FALSE(shards.is_done(2)) << at;
  }
  folder.write("shard_2", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT([&] { shards.read(2); },
              ThrowsMessage<RuntimeFault>(HasSubstr("shard_2: is no whole shard of this analysis.")));
}

}  // namespace
}  // namespace capstan

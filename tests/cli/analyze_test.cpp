// Analysing data as a user starts it: real processes.

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <csignal>

#include "capstan/sdk/indexed_file.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using sdk::IndexedRows;
using ::testing::HasSubstr;

class Analyze : public ::testing::Test {
 protected:
  Analyze() {
    write_bytes(folder_ / "text.txt", some_text());
    write_bytes(folder_ / "config.json", R"({"train_batch_size": 8})");
  }

  ProcessResult analyze(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"analyze", "--config", "config.json", "--data", "text.txt", "--seq", "16"};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  }
  std::string bytes(const std::string& path) const { return read_bytes(folder_ / path); }

  TemporaryFolder folder_;
};

const std::vector<std::string> kBytes = {"--metric", R"(total_vocab_freq:{"vocabulary": 256})"};

TEST_F(Analyze, MeasuresHowRareTheTokensOfEachSampleAre) {
  const ProcessResult result = analyze(
      {kBytes[0], kBytes[1], "--metric", "vocab_rarity", "--metric", "seqlen_vocab_rarity", "--out", "metrics"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("analyze: vocab_rarity: written to metrics/vocab_rarity"));

  // The formula, from the text itself.
  const std::string text = bytes("text.txt");
  const std::size_t samples = (text.size() - 1) / 16;
  std::array<double, 256> counts{};
  for (std::size_t i = 0; i < samples * 16; ++i) ++counts[static_cast<unsigned char>(text[i])];
  double sum = 0, largest = 0;
  for (double& count : counts) sum += count = std::max(count, 1.0);
  std::array<double, 256> rarity{};
  for (std::size_t i = 0; i < 256; ++i) largest = std::max(largest, rarity[i] = -std::log(counts[i] / sum));
  const IndexedRows found((folder_ / "metrics/vocab_rarity/vocab_rarity_sample_to_metric").string());
  const IndexedRows both((folder_ / "metrics/seqlen_vocab_rarity/seqlen_vocab_rarity_sample_to_metric").string());
  ASSERT_EQ(found.rows(), static_cast<std::int64_t>(samples));
  const double factor = std::pow(10, std::ceil(std::log10(16 * largest)) + 1);
  for (std::size_t i = 0; i < samples; ++i) {
    double wanted = 0;
    for (std::size_t t = 0; t < 16; ++t) wanted += rarity[static_cast<unsigned char>(text[i * 16 + t])];
    const auto row = static_cast<std::int64_t>(i);
    ASSERT_NEAR(static_cast<double>(found.row(row)[0]), std::floor(wanted),
                std::abs(wanted - std::round(wanted)) < 1e-9)
        << i;
    ASSERT_EQ(both.row(row)[0], 16 * static_cast<std::int64_t>(factor) + found.row(row)[0]) << i;
  }
  const IndexedRows totals((folder_ / "metrics/total_vocab_freq/total_vocab_freq_metric_value").string());
  EXPECT_EQ(totals.row(0)['e'], static_cast<std::int64_t>(counts['e']));
}

TEST_F(Analyze, WritesTheSameBytesInSeveralProcesses) {
  const auto run = [&](const std::string& out, const std::string& processes) {
    const ProcessResult result =
        analyze({kBytes[0], kBytes[1], "--metric", "vocab_rarity", "--out", out, "-n", processes});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  };
  run("one", "1");
  run("three", "3");
  for (const char* name :
       {"sample_to_metric", "index_to_metric", "index_to_sample", "index_to_sample_percentile_merged"}) {
    for (const char* ending : {".idx", ".bin"}) {
      const std::string file = std::string("/vocab_rarity/vocab_rarity_") + name + ending;
      EXPECT_EQ(bytes("one" + file), bytes("three" + file)) << file;
      EXPECT_FALSE(bytes("one" + file).empty());
    }
  }
  EXPECT_EQ(bytes("one/vocab_rarity/vocab_rarity_analysis.json"),
            bytes("three/vocab_rarity/vocab_rarity_analysis.json"));
}

TEST_F(Analyze, LeavesWhatIsThereAndMeasuresOtherDataAnew) {
  ASSERT_EQ(analyze({"--metric", "seqlen", "--out", "m"}).exit_code, 0);
  EXPECT_THAT(analyze({"--metric", "seqlen", "--out", "m"}).out,
              HasSubstr("analyze: seqlen: is there already, in m/seqlen"));
  write_bytes(folder_ / "text.txt", some_text() + "another end of the text, which is longer");
  EXPECT_THAT(analyze({"--metric", "seqlen", "--out", "m"}).out, HasSubstr("analyze: seqlen: written to m/seqlen"));
}

TEST_F(Analyze, RefusesWhatItCannotMeasureWithAReason) {
  const auto refusal = [&](const std::vector<std::string>& more) {
    const ProcessResult result = analyze(more);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(refusal({"--metric", "rarity", "--out", "m"}),
              HasSubstr("--metric rarity: no plugin provides a metric 'rarity'"));
  EXPECT_THAT(
      refusal({"--metric", "vocab_rarity", "--out", "m"}),
      HasSubstr("metric 'total_vocab_freq': how many tokens there are is not known. Name a model, with --model, or "
                "give the parameter 'vocabulary'."));
  EXPECT_THAT(refusal({"--metric", R"(seqlen:{"paddin": 0})", "--out", "m"}),
              HasSubstr("--metric seqlen.paddin: is unknown. seqlen has 'padding'."));
  EXPECT_THAT(refusal({"--metric", "seqlen:{", "--out", "m"}),
              HasSubstr("--metric seqlen:{: what stands behind the colon must be a JSON object"));
  EXPECT_THAT(refusal({"--metric", R"(total_vocab_freq:{"vocabulary": 20})", "--out", "m"}),
              HasSubstr("is outside of the vocabulary, 0 to 19. Raise the parameter 'vocabulary'."));
  write_bytes(folder_ / "file", "");
  EXPECT_THAT(refusal({"--metric", "seqlen", "--out", "file/m"}), HasSubstr("file"));
}

}  // namespace
}  // namespace capstan::cli

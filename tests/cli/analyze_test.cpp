// Analysing data as a user starts it: real processes.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

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

TEST_F(Analyze, MeasuresTheRarityOfTokensWithoutAMetricAndTellsWhatThatNeeds) {
  const ProcessResult result =
      run_capstan(folder_, {"analyze", "--model", "gpt:tiny", "--data", "text.txt", "--seq", "16", "--out", "metrics"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(" samples, 2 metrics (total_vocab_freq, which vocab_rarity needs), 1 process\n"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "metrics/vocab_rarity/vocab_rarity_analysis.json"));
}

TEST_F(Analyze, AMetricThatIsNotThereIsMisuse) {
  for (const char* metric : {"foo", "seqlen:{"}) {
    EXPECT_EQ(analyze({"--metric", metric, "--out", "metrics"}).exit_code, 2) << metric;
  }
  EXPECT_THAT(analyze({"--metric", "foo", "--out", "metrics"}).err,
              HasSubstr("--metric foo: no plugin provides a metric 'foo'. Available: seqlen, "));
}

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

TEST_F(Analyze, MeasuresAnewWhereTheModelHasAnotherVocabulary) {
  const auto tokens = [&](const std::string& vocabulary) {
    const ProcessResult result = analyze({"--metric", "total_vocab_freq", "--out", "m", "--set",
                                          R"(capstan.model={"type": "gpt", "params": {"layers": 1, "d": 8, "heads": 1,
                                             "seq": 16, "vocab": )" +
                                              vocabulary + "}}"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return IndexedRows((folder_ / "m/total_vocab_freq/total_vocab_freq_metric_value").string()).size(0);
  };
  EXPECT_EQ(tokens("256"), 256);
  EXPECT_EQ(tokens("512"), 512);
}

TEST_F(Analyze, RefusesAFolderInWhichAnotherAnalysisWorks) {
  std::filesystem::create_directory(folder_ / "m");
  const int lock = ::open((folder_ / "m/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  for (const char* processes : {"1", "2"}) {
    const ProcessResult refused = analyze({"--metric", "seqlen", "--out", "m", "-n", processes});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.err, HasSubstr("m: another 'capstan analyze' works in this folder. Wait for it, or name "
                                       "another folder with --out."));
  }
  ::close(lock);
  EXPECT_EQ(analyze({"--metric", "seqlen", "--out", "m"}).exit_code, 0);
}

TEST_F(Analyze, MeasuresByTheMetricOfAThirdParty) {
  const ProcessResult result = analyze({"--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/probe_plugins", "--metric",
                                        R"(compressibility:{"level": 9})", "--out", "metrics", "-n", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const IndexedRows found((folder_ / "metrics/compressibility/compressibility_sample_to_metric").string());
  const std::string text = bytes("text.txt");
  ASSERT_EQ(found.rows(), static_cast<std::int64_t>((text.size() - 1) / 16));
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{7}, found.rows() - 1}) {
    // Tokens are bytes below 128, and zlib's stream of a sample is that of these bytes.
    uLongf size = compressBound(16);
    std::vector<unsigned char> out(size);
    const auto* sample = reinterpret_cast<const unsigned char*>(text.data()) + row * 16;
    ASSERT_EQ(compress2(out.data(), &size, sample, 16, 9), Z_OK);
    EXPECT_EQ(found.row(row)[0], static_cast<std::int64_t>(size)) << row;
  }
}

TEST_F(Analyze, MakesWhatACurriculumTrainsBy) {
  ASSERT_EQ(analyze({kBytes[0], kBytes[1], "--metric", "vocab_rarity", "--out", "metrics"}).exit_code, 0);
  const auto train = [&](const std::string& difficulty_type, const std::string& index, const std::string& text) {
    write_bytes(folder_ / "train.json",
                R"({"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                    "capstan": {"data": {"sequence_length": 16},
                      "model": {"type": "gpt", "params": {"layers": 1, "d": 8, "heads": 1, "seq": 16}}},
                    "data_efficiency": {"enabled": true, "data_sampling": {"enabled": true, "curriculum_learning": {
                      "enabled": true, "data_cluster_path": "clusters", "curriculum_metrics": {"vocab_rarity": {
                        "index_to_sample_path": "metrics/vocab_rarity/vocab_rarity_)" +
                    index +
                    R"(", "index_to_metric_path": "metrics/vocab_rarity/vocab_rarity_index_to_metric",
                        "difficulty_type": ")" +
                    difficulty_type + R"(", "clustering_type": "schedule_based", "min_difficulty": 45,
                        "max_difficulty": 100, "schedule_type": "fixed_linear",
                        "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 1}}}}}}})");
    return run_capstan(folder_, {"train", "--config", "train.json", "--data", text, "--steps", "3", "--no-progress"});
  };
  for (const auto& [type, index] : {std::pair("value", "index_to_sample"), std::pair("percentile", "index_to_sample"),
                                    std::pair("percentile", "index_to_sample_percentile_merged")}) {
    const ProcessResult result = train(type, index, "text.txt");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("trained 3 steps"));
  }
  // As many samples of other text.
  std::string other = bytes("text.txt");
  other[100] = '!';
  write_bytes(folder_ / "other.txt", other);
  EXPECT_THAT(train("value", "index_to_sample", "other.txt").err,
              HasSubstr("metrics/vocab_rarity/vocab_rarity_index_to_sample: the metric was measured on other data"));
  write_bytes(folder_ / "more.txt", bytes("text.txt") + "more text, of at least one sample");
  EXPECT_THAT(train("value", "index_to_sample", "more.txt").err, HasSubstr("the metric was measured on other data"));
}

TEST_F(Analyze, SaysThatTheDiskIsFullAndGoesOnLater) {
  // The shell's limit on the size of files stands for a full disk.
  const std::string command = "trap '' XFSZ; ulimit -f 4; exec " + kCapstan +
                              " analyze --config config.json --data text.txt --seq 16 --metric seqlen --out m";
  ProcessOptions options;
  options.folder = folder_.path();
  const ProcessResult full = run_process({"/bin/sh", "-c", command}, options);
  EXPECT_NE(full.exit_code, 0);
  EXPECT_THAT(full.err, ::testing::ContainsRegex("m/seqlen/[^ ]*: .*File too large"));
  EXPECT_EQ(analyze({"--metric", "seqlen", "--out", "m"}).exit_code, 0);
  EXPECT_EQ(analyze({"--metric", "seqlen", "--out", "n"}).exit_code, 0);
  EXPECT_EQ(bytes("m/seqlen/seqlen_index_to_sample.bin"), bytes("n/seqlen/seqlen_index_to_sample.bin"));
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
  EXPECT_THAT(refusal({"--metric", "seqlen", "--metric", R"(seqlen:{"padding": 1})", "--out", "m"}),
              HasSubstr("--metric: 'seqlen' is named twice."));
  write_bytes(folder_ / "file", "");
  EXPECT_THAT(refusal({"--metric", "seqlen", "--out", "file/m"}), HasSubstr("file"));
}

}  // namespace
}  // namespace capstan::cli

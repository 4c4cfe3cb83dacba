#include <gmock/gmock.h>

#include <fstream>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class AttentionShow : public ::testing::Test {
 protected:
  /// `capstan attention show` of a configuration with `section`.
  ProcessResult show(const std::string& section, std::vector<std::string> words) {
    std::ofstream(folder_ / "ds.json") << R"({"train_batch_size": 8, "gradient_clipping": 1.0)" << section << "}";
    words.insert(words.begin(), {"attention", "show", "--config", "ds.json"});
    return run_capstan(folder_, words);
  }
  TemporaryFolder folder_;
};

const char* const kWindow =
    R"(, "sparse_attention": {"mode": "bslongformer", "num_sliding_window_blocks": 3, "global_block_indices": [0]})";

TEST_F(AttentionShow, DrawsALayoutAndWhatItSaves) {
  const ProcessResult result = show(kWindow, {"--length", "80", "--heads", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // A window of three, the first column and the first row: 19 of 25.
  EXPECT_EQ(result.out,
            "80 tokens: 5 blocks of 16\n"
            "all heads\n"
            "  #####\n"
            "  ###..\n"
            "  ####.\n"
            "  #.###\n"
            "  #..##\n"
            "density 76.0 %: 38 of the 50 cells that dense attention computes\n"
            "expected gain: attention 1.1 to 1.3 times as fast as dense\n");
}

TEST_F(AttentionShow, LeavesOutWhatACausalCallDoes) {
  const ProcessResult result = show(kWindow, {"--length", "80", "--causal"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("80 tokens: 5 blocks of 16, causal\nall heads\n"
                                    "  #----\n"
                                    "  ##-..\n"
                                    "  ###-.\n"
                                    "  #.##-\n"
                                    "  #..##\n"
                                    "'-' is set, and above the diagonal: left out\n"
                                    "density 80.0 %: 12 of the 15 cells that dense causal attention computes\n"));
}

TEST_F(AttentionShow, DrawsHeadsThatDifferApart) {
  const ProcessResult result = show(R"(, "sparse_attention": {"mode": "fixed", "num_local_blocks": 2,
    "num_different_global_patterns": 2, "different_layout_per_head": true})",
                                    {"--length", "64", "--heads", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("heads 0, 2\n  ##.#\n  ##.#\n  .###\n  .###\nheads 1\n  ###.\n  ###.\n  #.##\n  #.##\n"));
}

TEST_F(AttentionShow, TellsProgramsEveryCell) {
  const ProcessResult result = show(kWindow, {"--length", "65", "--heads", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json.at("blocks"), Json(5));
  EXPECT_EQ(json.at("density"), Json(0.76));
  EXPECT_EQ(json.at("layout").dump(),
            R"([["11111","11100","11110","10111","10011"],["11111","11100","11110","10111","10011"]])");
}

TEST_F(AttentionShow, DrawsALongSequenceOnlyWhereItIsAskedTo) {
  // The first row, the first column, and of the window beside these 2 + 126 x 3 + 2.
  const ProcessResult brief = show(kWindow, {"--length", "2064"}), full = show(kWindow, {"--length", "2064", "--full"});
  EXPECT_THAT(
      brief.out,
      HasSubstr("129 blocks of 16\nnot drawn: more than 128 blocks; --full draws them\ndensity 3.8 %: 639 of "));
  EXPECT_THAT(full.out, HasSubstr("  " + std::string(129, '#') + "\n"));
}

TEST_F(AttentionShow, SaysWhatItLacksAndWhatDoesNotFit) {
  const auto refusal = [&](const std::string& section, std::vector<std::string> words) {
    const ProcessResult result = show(section, std::move(words));
    EXPECT_NE(result.exit_code, 0) << result.out;
    return result.err;
  };
  EXPECT_THAT(refusal("", {"--length", "64"}),
              HasSubstr("attention is dense. Give the section sparse_attention, or capstan.attention."));
  EXPECT_THAT(refusal(kWindow, {}), HasSubstr("how long a sequence is is not known. Give --length."));
  EXPECT_THAT(refusal(kWindow, {"--length", "15"}), HasSubstr("a block has 16 tokens, and a sequence 15."));
  EXPECT_THAT(refusal(R"(, "sparse_attention": {"mode": "bigbird", "num_random_blocks": 5})", {"--length", "64"}),
              HasSubstr("num_random_blocks: 5 is above the 4 blocks of a sequence."));
  EXPECT_THAT(refusal(R"(, "capstan": {"attention": {"type": "block_sparse"}})", {"--length", "64"}),
              HasSubstr("has no layouts: it computes those of others. Name it in capstan.attention.kernel."));
}

}  // namespace
}  // namespace capstan::cli

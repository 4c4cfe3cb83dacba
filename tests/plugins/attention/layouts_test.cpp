// The layouts of sparse_attention: pictures, layouts recorded from DeepSpeed's classes, and rules that all of them
// keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

#include "core/errors.hpp"
#include "tests/plugins/attention/bundled_layout.hpp"

namespace capstan::testing {
namespace {

using ::testing::HasSubstr;

std::string row_of(const BlockLayout& layout, std::uint32_t head, std::uint32_t row) {
  std::string text;
  for (std::uint32_t column = 0; column < layout.blocks; ++column) {
    text += layout.is_set(head, row, column) ? '#' : '.';
  }
  return text;
}

std::string picture(const BlockLayout& layout, std::uint32_t head = 0) {
  std::string text;
  for (std::uint32_t row = 0; row < layout.blocks; ++row) text += row_of(layout, head, row) + "\n";
  return text;
}

/// What the component itself sets: of a causal layout above the diagonal as well, as DeepSpeed's classes do.
BlockLayout raw_layout(const std::string& type, const Json& params, std::int64_t heads, std::int64_t tokens) {
  return make_layout(attention_component(type, params), "here", heads, tokens, false, 7);
}

std::string drawn(const std::string& type, const std::string& params, std::int64_t blocks, std::uint32_t head = 0,
                  std::int64_t heads = 1) {
  Json given = Json::parse(params);
  given["block"] = 16;
  return picture(raw_layout(type, given, heads, 16 * blocks), head);
}

TEST(Fixed, DrawsThePicturesOfTheReference) {
  EXPECT_EQ(drawn("fixed", "{}", 8),
            "####...#\n####...#\n####...#\n####...#\n...#####\n...#####\n...#####\n...#####\n");
  EXPECT_EQ(drawn("fixed", R"({"horizontal_global_attention": true})", 8),
            "####...#\n####...#\n####...#\n########\n...#####\n...#####\n...#####\n########\n");
  EXPECT_EQ(drawn("fixed", R"({"attention": "unidirectional"})", 8),
            "#.......\n##......\n###.....\n####....\n...##...\n...###..\n...####.\n...#####\n");
  EXPECT_EQ(drawn("fixed", R"({"attention": "unidirectional"})", 10),
            "#.........\n##........\n###.......\n####......\n...##.....\n...###....\n...####...\n...#####..\n"
            "...#...##.\n...#...###\n");
}

TEST(Fixed, GivesEachPatternItsOwnRepresentative) {
  const std::string params = R"({"different_layout_per_head": true, "num_different_global_patterns": 4})";
  const char* const first_rows[] = {"####...#\n", "####..#.\n", "####.#..\n", "#####...\n"};
  for (std::uint32_t head = 0; head < 8; ++head) {
    EXPECT_EQ(drawn("fixed", params, 8, head, 8).substr(0, 9), first_rows[head % 4]) << head;
  }
}

TEST(Variable, DrawsThePicturesOfTheReference) {
  EXPECT_EQ(drawn("variable", R"({"local_window_blocks": [1, 2, 3]})", 10),
            "#.........\n###.......\n###.......\n#..###....\n#..###....\n#..###....\n#.....###.\n#.....###.\n"
            "#.....###.\n#........#\n");
  EXPECT_EQ(drawn("variable", R"({"local_window_blocks": [2], "global_block_indices": [0, 4],
      "global_block_end_indices": [1, 6], "attention": "unidirectional"})",
                  8),
            "#.......\n##......\n#.#.....\n#.##....\n#...##..\n#...##..\n#...###.\n#...####\n");
  EXPECT_EQ(drawn("variable", R"({"local_window_blocks": [2], "global_block_indices": [3],
      "horizontal_global_attention": true})",
                  8),
            "##.#....\n##.#....\n..##....\n########\n...###..\n...###..\n...#..##\n...#..##\n");
}

TEST(BigBird, DrawsThePictureOfTheReference) {
  EXPECT_EQ(drawn("bigbird", "{}", 8),
            "########\n###.....\n####....\n#.###...\n#..###..\n#...###.\n#....###\n#.....##\n");
}

TEST(BSLongformer, DrawsThePicturesOfTheReference) {
  EXPECT_EQ(drawn("bslongformer", "{}", 8), drawn("bigbird", "{}", 8));
  EXPECT_EQ(drawn("bslongformer", R"({"num_sliding_window_blocks": 4, "global_block_indices": [2],
      "global_block_end_indices": [4]})",
                  8),
            "####....\n####....\n########\n########\n..#####.\n..######\n..######\n..##.###\n");
  EXPECT_EQ(drawn("bslongformer", R"({"global_block_indices": [2], "attention": "unidirectional"})", 8),
            "#.......\n##......\n###.....\n..##....\n..###...\n..#.##..\n..#..##.\n..#...##\n");
}

Json recorded_cases() {
  std::ifstream file(CAPSTAN_TEST_SOURCE_DIR "/tests/plugins/attention/recorded_layouts.json");
  std::stringstream text;
  text << file.rdbuf();
  return Json::parse(text.str());
}

/// A recorded head: rows of 0 and 1.
std::string recorded_picture(const Json& head) {
  std::string text;
  for (const Json& row : head.as_array()) text += row.as_string() + "\n";
  std::replace(text.begin(), text.end(), '0', '.');
  std::replace(text.begin(), text.end(), '1', '#');
  return text;
}

TEST(RecordedLayouts, AreEqualCellByCell) {
  int compared = 0, random = 0, refused = 0;
  const Json cases = recorded_cases();
  for (const Json& recorded : cases.as_array()) {
    Json params = recorded.at("params");
    const std::string mode = recorded.at("mode").as_string(), what = recorded.dump();
    const std::int64_t heads = recorded.at("num_heads").as_integer(), tokens = recorded.at("seq_len").as_integer();
    if (mode == "dense") params = Json::parse(R"({"block": )" + std::to_string(params.at("block").as_integer()) + "}");
    // The class draws one random block where it is not told; the section's default is 0.
    if (mode == "bigbird" && params.find("num_random_blocks") == nullptr) params["num_random_blocks"] = 1;
    if (recorded.find("error") != nullptr) {
      // D70: fewer random blocks where a row has fewer. D90: any length.
      if (tokens % 16 != 0 || (params.find("num_random_blocks") && params.at("num_random_blocks").as_integer() == 3)) {
        EXPECT_NO_THROW(bundled_layout(mode, params, heads, tokens)) << what;
      } else {
        EXPECT_ANY_THROW(bundled_layout(mode, params, heads, tokens)) << what;
        ++refused;
      }
      continue;
    }
    const BlockLayout layout = raw_layout(mode, params, heads, tokens);
    const bool drawn_by_chance = recorded.find("random") != nullptr;
    const Json& all = recorded.at(drawn_by_chance ? "layout_without_random" : "layout");
    for (std::uint32_t head = 0; head < layout.heads; ++head) {
      const Json& of_head = all.as_array()[all.size() == 1 ? 0 : head];
      if (!drawn_by_chance) {
        EXPECT_EQ(picture(layout, head), recorded_picture(of_head)) << what << head;
        continue;
      }
      const std::int64_t blocks = params.at("num_random_blocks").as_integer();
      for (std::uint32_t row = 0; row < layout.blocks; ++row) {
        const std::string& wanted = of_head.as_array()[row].as_string();
        std::int64_t more = 0;
        for (std::uint32_t column = 0; column < layout.blocks; ++column) {
          const bool recorded_cell = wanted[column] == '1', set = layout.is_set(head, row, column);
          EXPECT_TRUE(set || !recorded_cell) << what << row << column;
          more += set && !recorded_cell;
        }
        EXPECT_LE(more, blocks) << what << row;
      }
    }
    drawn_by_chance ? ++random : ++compared;
  }
  EXPECT_EQ(compared, 32);
  EXPECT_EQ(random, 4);
  EXPECT_EQ(refused, 7);
}

/// Parameters that a mode accepts, drawn.
Json drawn_params(const std::string& mode, std::mt19937& random, std::int64_t blocks) {
  const auto below = [&](std::int64_t end) { return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random); };
  Json params = Json::object();
  params["block"] = 1 + below(16);
  if (mode == "dense") return params;
  params["different_layout_per_head"] = below(2) == 0;
  params["attention"] = below(2) == 0 ? "unidirectional" : "bidirectional";
  const bool two_ways = params.at("attention").as_string() == "bidirectional";
  if (mode == "fixed") {
    const std::int64_t global = 1 + below(std::min<std::int64_t>(2, blocks)), windows = 1 + below(4);
    params["num_global_blocks"] = global;
    params["num_local_blocks"] = global * windows;
    if (params.at("different_layout_per_head").as_bool()) {
      params["num_different_global_patterns"] = 1 + below(std::min<std::int64_t>(windows, 2));
    }
  }
  if (mode == "fixed" || mode == "variable") params["horizontal_global_attention"] = two_ways && below(2) == 0;
  if (mode == "variable" || mode == "bigbird")
    params["num_random_blocks"] = below(std::min<std::int64_t>(4, blocks + 1));
  if (mode == "bigbird" || mode == "bslongformer") {
    params["num_sliding_window_blocks"] = 1 + below(std::min<std::int64_t>(6, blocks));
  }
  if (mode == "bigbird") params["num_global_blocks"] = 1 + below(std::min<std::int64_t>(3, blocks));
  if (mode == "variable" || mode == "bslongformer") {
    Json starts = Json::array(), ends = Json::array();
    for (std::int64_t i = below(3); i >= 0; --i) {
      starts.push_back(below(2 * blocks));
      ends.push_back(starts.as_array().back().as_integer() + 1 + below(3));
    }
    params["global_block_indices"] = starts;
    if (below(2) == 0) params["global_block_end_indices"] = ends;
  }
  return params;
}

TEST(AllLayouts, KeepTheirRulesFor2000DrawnConfigurations) {
  std::mt19937 random(20);
  const char* const modes[] = {"dense", "fixed", "variable", "bigbird", "bslongformer"};
  for (int i = 0; i < 2000; ++i) {
    const std::string mode = modes[i % 5];
    const auto blocks = std::uniform_int_distribution<std::int64_t>(1, 24)(random);
    const Json params = drawn_params(mode, random, blocks);
    const std::int64_t block = params.at("block").as_integer(), heads = 2;
    // The last block may be short.
    const std::int64_t tokens = blocks * block - std::uniform_int_distribution<std::int64_t>(0, block - 1)(random);
    if (tokens < block) continue;
    const bool causal_call = i % 3 == 0;
    const BlockLayout layout = bundled_layout(mode, params, heads, tokens, causal_call, 5);
    const BlockLayout again = bundled_layout(mode, params, heads, tokens, causal_call, 5);
    const std::string what = mode + " " + params.dump() + " " + std::to_string(tokens);
    ASSERT_EQ(layout.cells, again.cells) << what;
    ASSERT_EQ(layout.blocks, blocks) << what;
    const Json* attention = params.find("attention");
    ASSERT_EQ(layout.causal, causal_call || (attention && attention->as_string() == "unidirectional")) << what;
    const bool alike = mode == "dense" || !params.at("different_layout_per_head").as_bool();
    for (std::uint32_t row = 0; row < layout.blocks; ++row) {
      ASSERT_TRUE(layout.is_set(0, row, row)) << what << row;  // every token looks at its own block
      ASSERT_TRUE(!alike || row_of(layout, 0, row) == row_of(layout, 1, row)) << what << row;
      for (std::uint32_t column = row + 1; layout.causal && column < layout.blocks; ++column) {
        ASSERT_FALSE(layout.is_set(0, row, column)) << what << row << column;
      }
    }
    ASSERT_LE(layout.density(), 1.0) << what;
    double scores = 0;
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t query = 0; query < tokens; ++query) {
        for (std::uint32_t column = 0; column < layout.blocks; ++column) {
          if (!layout.is_set(static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(query / block), column))
            continue;
          scores += static_cast<double>(std::min((column + 1) * block, tokens) - column * block);
        }
      }
    }
    ASSERT_EQ(layout.scores(), scores) << what;
  }
}

TEST(RandomBlocks, AreAFunctionOfSeedHeadAndRow) {
  const Json params = Json::parse(R"({"num_random_blocks": 3, "different_layout_per_head": true})");
  const BlockLayout layout = bundled_layout("bigbird", params, 4, 16 * 64, false, 1);
  EXPECT_NE(layout.cells, bundled_layout("bigbird", params, 4, 16 * 64, false, 2).cells);
  EXPECT_NE(picture(layout, 0), picture(layout, 1));
  // More heads leave the first ones as they were.
  EXPECT_EQ(picture(layout, 3), picture(bundled_layout("bigbird", params, 12, 16 * 64, false, 1), 3));
}

TEST(RandomBlocks, FallEverywhereAboutAsOften) {
  const Json params =
      Json::parse(R"({"num_random_blocks": 2, "local_window_blocks": [1], "global_block_indices": [99]})");
  std::vector<int> hits(16, 0);
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const BlockLayout layout = bundled_layout("variable", params, 1, 16 * 16, false, seed);
    for (std::uint32_t column = 0; column < 16; ++column) hits[column] += layout.is_set(0, 5, column);
  }
  for (std::uint32_t column = 0; column < 16; ++column) {
    if (column == 5) continue;                     // the row's own window
    EXPECT_NEAR(hits[column], 125, 40) << column;  // 4 standard deviations
  }
}

TEST(Layouts, SayWhatDoesNotFitTheSequence) {
  const auto refusal = [](const std::string& type, const std::string& params, std::int64_t heads, std::int64_t tokens) {
    try {
      bundled_layout(type, Json::parse(params), heads, tokens);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(refusal("bigbird", R"({"num_sliding_window_blocks": 5})", 2, 64),
            "here: attention 'bigbird': num_sliding_window_blocks: 5 is above the 4 blocks of a sequence. Lower it, or "
            "train on longer sequences.");
  EXPECT_THAT(refusal("bigbird", R"({"num_random_blocks": 5})", 2, 64),
              HasSubstr("num_random_blocks: 5 is above the 4"));
  EXPECT_THAT(refusal("bigbird", R"({"num_global_blocks": 5})", 2, 64),
              HasSubstr("num_global_blocks: 5 is above the 4"));
  EXPECT_THAT(refusal("variable", R"({"num_random_blocks": 9})", 2, 64), HasSubstr("num_random_blocks: 9 is above"));
  EXPECT_THAT(refusal("fixed", R"({"block": 64})", 2, 63),
              HasSubstr("a block has 64 tokens, and a sequence 63. Lower 'block', or train on longer sequences."));
  EXPECT_THAT(refusal("fixed", R"({"num_different_global_patterns": 3, "different_layout_per_head": true})", 2, 64),
              HasSubstr("num_different_global_patterns: 3 is above the 2 heads of the model."));
}

}  // namespace
}  // namespace capstan::testing

#include "core/text/nearest.hpp"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("betas", "beats"), 1u);
  EXPECT_EQ(edit_distance("adam", "adm"), 1u);
}

TEST(NameDistance, IgnoresLetterCaseHyphensAndUnderscores) {
  EXPECT_EQ(name_distance("cuda-aware", "cuda_aware"), 0u);
  EXPECT_EQ(name_distance("AdamW", "adamw"), 0u);
}

TEST(NameDistance, TakesWordsInAnotherOrderForNeighbours) {
  EXPECT_EQ(name_distance("comm_overlap", "overlap_comm"), 1u);
}

TEST(NearestName, FindsTheNameMeant) {
  EXPECT_EQ(nearest_name("Adm", {"AdamW", "Adam", "Lion"}), "Adam");
  EXPECT_EQ(nearest_name("gradient_cliping", {"gradient_clipping", "gradient_predivide_factor"}), "gradient_clipping");
  EXPECT_EQ(nearest_name("warmup_max", {"warmup_min_lr", "warmup_max_lr"}), "warmup_max_lr");
}

TEST(NearestName, FindsNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("lr", {"betas", "momentum"}), std::nullopt);
  EXPECT_EQ(nearest_name("quite_another_name", {"betas", "momentum"}), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
  EXPECT_EQ(nearest_name("Muon", {"Lion"}), std::nullopt);
}

TEST(NearestName, DoesNotSearchForNamesOfUnreasonableLength) {
  EXPECT_EQ(nearest_name(std::string(1'000'000, 'a'), {"betas"}), std::nullopt);
  EXPECT_EQ(nearest_name("betas", {std::string(1'000'000, 'a')}), std::nullopt);
}

TEST(Suggestion, IsASentenceToAppend) {
  EXPECT_EQ(suggestion("Lyon", {"Adam", "Lion"}), " Did you mean 'Lion'?");
  EXPECT_EQ(suggestion("zzzzzz", {"Adam", "Lion"}), "");
}

}  // namespace
}  // namespace capstan

#include "cli/verify/verify_causes.hpp"

#include <gmock/gmock.h>

#include "cli/verify/verify_record.hpp"
#include "tests/support/temporary_folder.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Causes : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& facts) {
    const std::filesystem::path folder = folder_ / name;
    std::filesystem::create_directories(folder);
    write_bytes(RunRecord::facts(folder), facts);
    return folder;
  }
  /// Of a run with these facts, beside one with others.
  std::string cause(const std::string& facts, const std::string& others, bool other_split = true) {
    return cause_of(write("reference", others), write("run", facts), other_split);
  }

  TemporaryFolder folder_;
};

TEST_F(Causes, AreNoneWhereTheFactsTellNothing) {
  EXPECT_THAT(cause(R"({"losses": [1], "draws": [], "batch_norms": []})", R"({"losses": [2]})"), IsEmpty());
  EXPECT_THAT(cause_of(folder_ / "none", folder_ / "none", true), IsEmpty());
}

TEST_F(Causes, OfDropoutAndBatchNormalisationAreThoseOfAnotherSplitAlone) {
  constexpr const char* kDraws = R"({"draws": ["LibTorch"]})";
  EXPECT_THAT(cause(kDraws, kDraws), HasSubstr("Verify with dropout 0"));
  EXPECT_THAT(cause(kDraws, kDraws, /*other_split=*/false), IsEmpty());
  constexpr const char* kNorms = R"({"batch_norms": ["body.1", "body.4", "head"]})";
  EXPECT_THAT(cause(kNorms, kNorms), HasSubstr("The batch normalisation 'body.1' and 2 more takes"));
  EXPECT_THAT(cause(kNorms, kNorms, /*other_split=*/false), IsEmpty());
}

TEST_F(Causes, OfRandomNumbersThatNobodySeedsComeFirst) {
  constexpr const char* kNumPy = R"({"draws": ["LibTorch", "NumPy"], "batch_norms": ["body"]})";
  EXPECT_THAT(cause(kNumPy, kNumPy, /*other_split=*/false),
              HasSubstr("forward draws random numbers from NumPy, which"));
}

TEST_F(Causes, AreCountsOfTokensWhereTheMeanOverTokensIsTheSame) {
  const auto with = [](const char* loss, const char* by_token) {
    return std::string(R"({"losses": [)") + loss + R"(, 1], "token_losses": [)" + by_token + ", 1]}";
  };
  EXPECT_THAT(cause(with("2.5", "2.25"), with("2.375", "2.25")),
              HasSubstr("the mean of their means is 2.5 here and 2.375 there, the mean over tokens is 2.25 in both."));
  EXPECT_THAT(cause(with("2.5", "2.5"), with("2.375", "2.375")), IsEmpty());
  EXPECT_THAT(cause(with("2.5", "2.251"), with("2.375", "2.25")), IsEmpty());
  EXPECT_THAT(cause(R"({"losses": ["not finite"], "token_losses": [2]})", with("2", "2")), IsEmpty());
}

TEST_F(Causes, WarnOfInputsThatForwardChanges) {
  EXPECT_THAT(warning_of(write("run", R"({"changed_inputs": ["x", "y"]})")),
              HasSubstr("forward changes its input 'x' and 1 more in place"));
  EXPECT_THAT(warning_of(write("run", R"({"changed_inputs": []})")), IsEmpty());
}

}  // namespace
}  // namespace capstan::cli

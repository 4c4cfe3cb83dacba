// `capstan verify`: real processes, real faults.

#include <gmock/gmock.h>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Verify : public ::testing::Test {
 protected:
  Verify() {
    write_bytes(folder_ / "text.txt", some_text());
    write_bytes(folder_ / "config.json", R"({"train_batch_size": 4, "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "capstan": {"model": {"type": "gpt", "params": {
      "layers": 2, "d": 16, "heads": 2, "seq": 16}}}})");
  }

  ProcessResult verify(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"verify", "--config", "config.json", "--data", "text.txt"};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  }

  TemporaryFolder folder_;
};

TEST_F(Verify, FindsNothingWhereNothingIsWrong) {
  const ProcessResult result = verify({"--json", "--json-file", "found.json", "--html", "page.html"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  const Json found = Json::parse(result.out);
  EXPECT_EQ(Json::parse(read_bytes(folder_ / "found.json")), found);
  for (const char* badge : {"accumulation", "recomputation", "resuming", "2 processes", "ZeRO 1", "ZeRO 2", "ZeRO 3",
                            "overlap", "offload"}) {
    EXPECT_THAT(read_bytes(folder_ / "page.html"), HasSubstr(std::string("<li class=\"kept\">") + badge + "</li>"));
  }
  EXPECT_EQ(found.at("kept"), Json(true));
  EXPECT_EQ(found.at("variants").as_array().size(), 16u);
  for (const Json& variant : found.at("variants").as_array()) {
    EXPECT_EQ(variant.at("verdict"), Json("kept")) << variant.dump();
  }
  EXPECT_THAT(result.out, HasSubstr("\"name\": \"stage 3, 2 processes\""));
}

TEST_F(Verify, NamesAStateThatIsNotSaved) {
  setenv("CAPSTAN_BAD", "state_round_trip", 1);
  const ProcessResult result =
      verify({"--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins", "--set",
              R"(optimizer={"type": "Bad", "params": {"lr": 0.1}})", "--only", "saved and resumed"});
  unsetenv("CAPSTAN_BAD");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("saved and resumed"), HasSubstr("DIFFERS"),
                                HasSubstr("a state that the optimizer's manifest does not declare")));
}

TEST_F(Verify, NamesAnUpdateThatDependsOnItsPart) {
  setenv("CAPSTAN_BAD", "deterministic", 1);
  const ProcessResult result = verify({"--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins", "--set",
                                       R"(optimizer={"type": "Bad", "params": {"lr": 0.1}})", "--only", "stage 1, 2"});
  unsetenv("CAPSTAN_BAD");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("the loss at step 1 is "),
                                HasSubstr("The update depends on which part of a parameter a rank has")));
}

TEST_F(Verify, EndsAtAModelThatIsRandomByItself) {
  setenv("CAPSTAN_BAD", "clock", 1);
  const ProcessResult result =
      verify({"--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins", "--model", "Bad", "--seq", "16"});
  unsetenv("CAPSTAN_BAD");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("the same once more"), HasSubstr("DIFFERS"), Not(HasSubstr("stage 1"))));
  EXPECT_THAT(result.err, HasSubstr("two equal runs differ, so that no comparison tells anything."));
}

TEST_F(Verify, NamesWhatAnEarlierEngineOfTheProcessLeaves) {
  setenv("CAPSTAN_BAD", "deterministic", 1);  // its weights depend on how many were made
  const ProcessResult result = verify({"--plugin-path", CAPSTAN_TEST_BUILD_DIR "/tests/bad_plugins", "--model", "Bad",
                                       "--seq", "16", "--only", "after another engine"});
  unsetenv("CAPSTAN_BAD");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("after another engine"), HasSubstr("the initial values of 'weights' differ")));
}

TEST_F(Verify, TellsWhatIsRefusedAndWhatCannotBeSplit) {
  const ProcessResult refused =
      verify({"--set", R"(optimizer={"type": "OneBitAdam", "params": {"lr": 0.001}})", "--only", "stage 3, 2"});
  EXPECT_EQ(refused.exit_code, 0) << refused.err;
  EXPECT_THAT(refused.out, HasSubstr("refused: command line: optimizer.type: optimizer 'OneBitAdam' does its own"));
  const ProcessResult split = verify({"--set", "train_batch_size=3", "--only", "stage 1"});
  EXPECT_EQ(split.exit_code, 0) << split.err;
  EXPECT_THAT(split.out, HasSubstr("train_batch_size is 3, which 2 processes cannot share."));
}

TEST_F(Verify, EndsWithTheConfigurationsOwnMistakes) {
  const ProcessResult result = verify({"--set", "optimizer.params.lr=-1"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("optimizer.params.lr"));
  EXPECT_THAT(result.out, Not(HasSubstr("variant")));
  EXPECT_EQ(verify({"--steps", "1"}).exit_code, 2);
  const ProcessResult late = verify({"--set", R"(sparse_attention={"mode": "fixed", "block": 48})"});
  EXPECT_EQ(late.exit_code, 3) << late.err;
  EXPECT_THAT(late.out, AllOf(HasSubstr("refused: sparse_attention.mode: attention 'fixed': a block has 48 tokens"),
                              Not(HasSubstr("once more"))));
  const ProcessResult missing = verify({"--set", "capstan.data.path=[\"none.txt\"]"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.out, AllOf(HasSubstr("FAILED"), HasSubstr("none.txt"), Not(HasSubstr("stage 1"))));
}

TEST_F(Verify, GivesAPluginsAuthorAPageWithBadges) {
  const auto check = [&](const char* file, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"plugins", "check", std::string(CAPSTAN_TEST_BUILD_DIR) + file};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  };
  constexpr const char* kBad = "/tests/bad_plugins/libcapstan_bad_optimizer.so";
  setenv("CAPSTAN_BAD", "state_round_trip", 1);
  const ProcessResult result = check(kBad, {"--only", "loading", "--verify", "--html", "page.html"});
  unsetenv("CAPSTAN_BAD");
  EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("optimizer 'Bad':"), HasSubstr("DIFFERS")));
  EXPECT_THAT(read_bytes(folder_ / "page.html"), AllOf(HasSubstr("<li class=\"broken\">resuming: broken</li>"),
                                                       HasSubstr("<li class=\"kept\">ZeRO 3</li>")));
  EXPECT_THAT(check(kBad, {"--html", "page.html"}).err, HasSubstr("--html: is the page of --verify"));
  EXPECT_THAT(check(kBad, {"--verify", "--json"}).err, HasSubstr("--verify: prints a table"));
  EXPECT_THAT(check("/lib/capstan/plugins/offloads/libcapstan_offload_cpu.so", {"--verify"}).err,
              HasSubstr("--verify: trains with optimizers, schedules and models"));
}

}  // namespace
}  // namespace capstan::cli

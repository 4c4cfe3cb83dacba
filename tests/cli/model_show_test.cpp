#include <gmock/gmock.h>

#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string> kSmall = {
    "--set", "capstan.model.params.layers=1", "--set", "capstan.model.params.d=8",
    "--set", "capstan.model.params.heads=2",  "--set", "capstan.model.params.seq=16",
    "--set", "capstan.model.params.vocab=32"};

ProcessResult show(std::vector<std::string> words) {
  const TemporaryFolder folder;
  words.insert(words.begin(), {"model", "show"});
  return run_capstan(folder, words);
}

std::vector<std::string> small(std::vector<std::string> words) {
  words.insert(words.end(), kSmall.begin(), kSmall.end());
  return words;
}

TEST(ModelShow, CountsParametersByRole) {
  const ProcessResult result = show(small({"gpt", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);

  const auto expect = [&](const char* role, std::int64_t parameters, std::int64_t elements) {
    EXPECT_EQ(json.at("roles").at(role).at("parameters").as_integer(), parameters) << role;
    EXPECT_EQ(json.at("roles").at(role).at("elements").as_integer(), elements) << role;
  };
  expect("embedding", 2, 32 * 8 + 16 * 8);
  expect("head", 1, 32 * 8);
  expect("norm", 6, 6 * 8);
  expect("matrix", 4, 24 * 8 + 8 * 8 + 32 * 8 + 8 * 32);
  expect("bias", 4, 24 + 8 + 32 + 8);
  EXPECT_EQ(json.at("total").at("elements").as_integer(), 384 + 256 + 48 + 768 + 72);
  EXPECT_EQ(json.at("parameters").size(), 17u);
  EXPECT_EQ(json.at("parameters").as_array()[0].dump(),
            R"({"name":"tok_emb.weight","shape":[32,8],"dtype":"float32","role":"embedding","elements":256,)"
            R"("trained":true})");
}

TEST(ModelShow, ListsNamesShapesAndATotal) {
  const ProcessResult result = show(small({"gpt:mini", "--set", "capstan.model.params.tied_head=true"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;

  EXPECT_THAT(result.out, ::testing::ContainsRegex("NAME +SHAPE +DTYPE +ELEMENTS +ROLE\n"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("tok_emb.weight +32 x 8 +float32 +256 +embedding\n"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("ln_f.bias +8 +float32 +8 +norm\n"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("total +16 +1,272\n"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("head")));
}

TEST(ModelShow, TakesAPluginsFile) {
  const std::string folder = CAPSTAN_TEST_BUILD_DIR "/lib/capstan/plugins";
  const ProcessResult result = show({folder + "/models/libcapstan_model_mlp.so", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out).at("model"), Json("mlp"));

  const std::string optimizer = folder + "/optimizers/libcapstan_optimizer_adam.so";
  const ProcessResult none = show({optimizer});
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_EQ(none.err, "capstan: error: " + optimizer + ": provides no model.\n");
}

TEST(ModelShow, NamesTheModelThatIsMeant) {
  const ProcessResult result = show({"gtp"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("no plugin provides a model 'gtp'. Did you mean 'gpt' (capstan-gpt "));
}

}  // namespace
}  // namespace capstan::cli

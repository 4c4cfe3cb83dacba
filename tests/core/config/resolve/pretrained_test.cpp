#include "core/config/resolve/pretrained.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/config.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

PluginIndex one_model() {
  const std::string manifest =
      "schema = 1\nname = 'acme'\nversion = '1'\n[[components]]\nkind = 'model'\ntype = 'net'\nmodel_types = ['llama', "
      "'mistral']\n"
      "params.config = { type = 'object' }\nparams.depth = { type = 'integer', default = 1 }\n"
      "[abi]\nplugin = '1.0'\n[abi.torch]\ntier = 'none'\n";
  return PluginIndex::of({{"net.so", PluginManifest::parse(manifest, "net.so")}});
}

class Pretrained : public ::testing::Test {
 protected:
  ConfigReading read(const std::string& model, std::vector<std::pair<std::string, Json>> overrides = {}) const {
    ConfigText text;
    text.text = R"({"train_batch_size": 8, "capstan": {"model": )" + model + "}}";
    text.source = "c.json";
    ConfigContext context;
    context.check_only = true;
    context.takes_steps = false;
    context.overrides = std::move(overrides);
    return read_config(text, context, one_model());
  }
  static std::string errors(const ConfigReading& reading) {
    std::string all;
    for (const Problem& problem : reading.problems.all()) {
      if (problem.severity == Problem::Severity::kError) all += problem.path + ": " + problem.message + "\n";
    }
    return all;
  }
  std::string quoted_source() const { return "\"hf:" + folder_.path().string() + "\""; }

  TemporaryFolder folder_;
};

TEST_F(Pretrained, IsBuiltByTheModelThatTakesItsType) {
  folder_.write("config.json", R"({"model_type": "mistral", "hidden_size": 8})");
  const ConfigReading reading = read(quoted_source());
  ASSERT_TRUE(reading.config) << errors(reading);
  EXPECT_EQ(reading.config->run.model->type, "net");
  EXPECT_EQ(reading.config->run.model->params.at("config"),
            Json::parse(R"({"model_type": "mistral", "hidden_size": 8})"));
  EXPECT_EQ(reading.config->run.model->params.at("depth"), Json(1));
  EXPECT_EQ(initial_weights(*reading.config), folder_.path().string());
}

TEST_F(Pretrained, KeysThatAreGivenWinOverThoseOfTheFolder) {
  folder_.write("config.json", R"({"model_type": "llama", "hidden_size": 8, "rope": {"theta": 1, "type": "x"}})");
  const ConfigReading reading = read(quoted_source(), {{"capstan.model.params.config.rope.theta", 2},
                                                       {"capstan.model.params.depth", 3},
                                                       {"capstan.model.weights", ""}});
  ASSERT_TRUE(reading.config) << errors(reading);
  const Json& params = reading.config->run.model->params;
  EXPECT_EQ(params.at("config"),
            Json::parse(R"({"model_type": "llama", "hidden_size": 8, "rope": {"theta": 2, "type": "x"}})"));
  EXPECT_EQ(params.at("depth"), Json(3));
  EXPECT_EQ(initial_weights(*reading.config), "");
}

TEST_F(Pretrained, OfAnUnknownTypeIsOneErrorThatNamesTheKnownOnes) {
  folder_.write("config.json", R"({"model_type": "lama", "auto_map": {}})");
  const std::string text = errors(read(quoted_source()));
  EXPECT_THAT(text,
              HasSubstr("capstan.model: '" + (folder_ / "config.json").string() +
                        "': no plugin takes the model type 'lama'. Did you mean 'llama'? Known: llama, mistral. The "
                        "folder brings Python code for it (auto_map), which is never run. A plugin names the types "
                        "that it takes under model_types in its manifest."));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;  // and the line of the folders that were searched
}

TEST_F(Pretrained, ThatCannotBeReadIsAnErrorOfTheModel) {
  EXPECT_THAT(errors(read("\"hf:/nowhere/at/all\"")),
              HasSubstr("capstan.model: '/nowhere/at/all': there is no such folder or file."));
  EXPECT_THAT(errors(read(R"({"type": "nowhere.gguf"})")),
              HasSubstr("capstan.model: 'nowhere.gguf': there is no such folder"));
}

TEST_F(Pretrained, NamesCodeThatIsNotRun) {
  folder_.write("config.json", R"({"model_type": "llama", "auto_map": {"AutoModel": "code.Net"}})");
  const ConfigReading reading = read(quoted_source());
  ASSERT_TRUE(reading.config) << errors(reading);
  const auto& all = reading.problems.all();
  const auto notice =
      std::find_if(all.begin(), all.end(), [](const Problem& one) { return one.path == "capstan.model"; });
  ASSERT_NE(notice, all.end());
  EXPECT_THAT(notice->message, HasSubstr("auto_map names Python code of the folder, which is never run."));
}

TEST_F(Pretrained, WeightsOfOtherModelsMayBeNamedToo) {
  const ConfigReading reading = read(R"({"type": "net", "weights": "w.safetensors"})");
  ASSERT_TRUE(reading.config) << errors(reading);
  EXPECT_EQ(initial_weights(*reading.config), "w.safetensors");
}

}  // namespace
}  // namespace capstan

// Tokenizers that the host lends, through the SDK's class and through a plugin.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "capstan/sdk/tokenizer.hpp"
#include "core/components/model_host.hpp"
#include "core/data/dataset.hpp"
#include "core/errors.hpp"
#include "core/registry/host.hpp"
#include "core/registry/plugin_call.hpp"
#include "core/registry/plugin_index.hpp"
#include "core/registry/registry.hpp"
#include "tests/core/data/temporary_folder.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

class Tokenizers : public ::testing::Test {
 protected:
  Tokenizers() {
    folder_.write("tokenizer.json", test::byte_tokenizer().dump());
    folder_.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  }

  /// Does what a component does in a function that the engine calls, and throws the text of its failure.
  static void as_component(const capstan_host* host, const std::function<void()>& body) {
    call_plugin("test", [&](capstan_error* error) { return sdk::guarded(host, error, body); });
  }
  static void as_component(const std::function<void()>& body) { as_component(model_host(), body); }

  sdk::Tokenizer tokenizer() const { return {sdk::Host(model_host()), folder_.path().string()}; }

  test::TemporaryFolder folder_;
};

TEST_F(Tokenizers, GiveTheIdsOfTheFileAndTheTextOfIds) {
  as_component([&] {
    const sdk::Tokenizer lent = tokenizer();
    EXPECT_EQ(lent.vocabulary(), 257);
    EXPECT_EQ(lent.end_token(), 256);
    EXPECT_EQ(lent.find("<end>"), 256);
    EXPECT_EQ(lent.find("<none>"), std::nullopt);
    EXPECT_THAT(lent.encode("a\xC3\xA9<end>"), ElementsAre('a', 0xC3, 0xA9, 256));
    EXPECT_EQ(lent.decode(std::vector<std::int32_t>{'a', 0xC3, 0xA9, 256}), "a\xC3\xA9");
    EXPECT_EQ(lent.decode(std::vector<std::int32_t>{'a', 256}, sdk::Tokenizer::Special::kKeep), "a<end>");
    EXPECT_THAT(lent.encode(""), ElementsAre());
  });
}

TEST_F(Tokenizers, HaveNoEndTokenWhereNoFileNamesOne) {
  std::filesystem::remove(folder_.path() / "tokenizer_config.json");
  as_component([&] { EXPECT_EQ(tokenizer().end_token(), std::nullopt); });
}

TEST_F(Tokenizers, ServeSeveralThreadsAtOnce) {
  as_component([&] {
    const sdk::Tokenizer lent = tokenizer();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const std::string text(1000, static_cast<char>('a' + i));
        for (int round = 0; round < 50; ++round) {
          EXPECT_EQ(lent.encode(text), std::vector<std::int32_t>(1000, 'a' + i));
          EXPECT_EQ(lent.decode(std::vector<std::int32_t>(1000, 'a' + i)), text);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(Tokenizers, NameTheFileAndThePlaceOfWhatIsWrong) {
  EXPECT_THAT([&] { as_component([&] { tokenizer().encode("a\xFF"); }); },
              ThrowsMessage<PluginError>(StrEq("test: the text is not UTF-8 at byte 1.")));
  EXPECT_THAT([&] { as_component([&] { tokenizer().decode(std::vector<std::int32_t>{257}); }); },
              ThrowsMessage<PluginError>(HasSubstr("tokenizer.json: has no token 257, and 257 ids.")));
  folder_.write("tokenizer.json", R"({"model": {"type": "Sorcery"}})");
  EXPECT_THAT([&] { as_component([&] { tokenizer(); }); },
              ThrowsMessage<PluginError>(HasSubstr("tokenizer.json: model.type")));
  std::filesystem::remove(folder_.path() / "tokenizer.json");
  EXPECT_THAT([&] { as_component([&] { tokenizer(); }); },
              ThrowsMessage<PluginError>(HasSubstr(": has no tokenizer.json, tokenizer.model or *.tiktoken.")));
}

TEST_F(Tokenizers, AreRefusedBySentencesWhereTheHostHasNone) {
  const capstan_host bare = make_host();
  const auto open = [&](const capstan_host& host) {
    as_component(&host, [&] { sdk::Tokenizer(sdk::Host(&host), folder_.path().string()); });
  };
  EXPECT_THAT(
      [&] { open(bare); },
      ThrowsMessage<PluginError>(StrEq("test: open_tokenizer needs a running engine, and this program has none.")));
  capstan_host older = *model_host();
  older.struct_size = offsetof(capstan_host, open_tokenizer);
  EXPECT_THAT(
      [&] { open(older); },
      ThrowsMessage<PluginError>(StrEq("test: this Capstan lends no tokenizers to plugins. Install a newer one.")));
}

TEST_F(Tokenizers, LetADataSetReadTextItself) {
  folder_.write("text.txt", "one two");
  const PluginIndex plugins = PluginIndex::scan({{CAPSTAN_TEST_BUILD_DIR "/tests/probe_plugins", "the test"}});
  Registry registry(plugins);
  Json params = Json::object();
  params["tokenizer"] = folder_.path().string();
  const Dataset data(registry.create("test", "dataset", "TokenizedText", params, model_host()),
                     {.paths = {(folder_.path() / "text.txt").string()}, .sequence_length = 3});
  EXPECT_EQ(data.samples(), 2);
  EXPECT_EQ(data.facts().at("vocabulary"), Json(257));
  EXPECT_EQ(data.facts().at("characters"), Json(7));
  const Batch batch = data.read(std::vector<std::int64_t>{1});
  const at::Tensor& inputs = batch.tensors.at("input_ids");
  const at::Tensor& labels = batch.tensors.at("labels");
  EXPECT_EQ(std::vector<std::int64_t>(inputs.data_ptr<std::int64_t>(), inputs.data_ptr<std::int64_t>() + 3),
            (std::vector<std::int64_t>{' ', 't', 'w'}));
  EXPECT_EQ(std::vector<std::int64_t>(labels.data_ptr<std::int64_t>(), labels.data_ptr<std::int64_t>() + 3),
            (std::vector<std::int64_t>{'t', 'w', 'o'}));
}

}  // namespace
}  // namespace capstan

// `capstan data chat`: conversations to tokens and a loss mask, with a tokenizer of bytes that the tests write.

#include <gmock/gmock.h>

#include "core/text/json.hpp"
#include "tests/cli/data_chat_fixture.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

TEST_F(DataChat, MarksTheTokensOfTheAssistantForTheLoss) {
  const ProcessResult result = chat({"--out", "chats.idx"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "chats.idx: 2 documents, 14 tokens of uint16, 5 of them the assistant's; 1 conversation without a turn of "
            "the assistant left out\n");
  EXPECT_EQ(counted_text("chats"), "_______cd;__f;");  // u:ab;a:cd; and a:f;
  EXPECT_EQ(Json::parse(read_bytes(folder_ / "chats.idx.json")).at("tokens"), Json(14));
}

TEST_F(DataChat, TakesTheMarksOfATemplateAndPutsTheEndTokenBehindEachConversation) {
  write_bytes(folder_ / "marked.jinja",
              "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
              "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}");
  const ProcessResult result = chat({"--out", "chats.idx", "--chat-template", "marked.jinja", "--end-token", "<end>"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(counted_text("chats"), "_______cd_#__f_#");
}

TEST_F(DataChat, CountsATokenThatLiesAcrossTheBorderOfAPart) {
  Json json = test::byte_tokenizer();
  json["model"]["vocab"][":c"] = 257;
  json["model"]["vocab"]["d;"] = 258;
  json["model"]["merges"] = Json::parse(R"([[":", "c"], ["d", ";"]])");
  write_bytes(folder_ / "tok/tokenizer.json", json.dump());
  write_template(
      "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}");
  ASSERT_EQ(chat({"--out", "chats.idx"}).exit_code, 0);
  EXPECT_EQ(counted_text("chats"), "______##__f_");  // u : a b ; a :c d; and a : f ;
}

TEST_F(DataChat, CountsAllTokensWhereAskedAndRemovesAnOlderMask) {
  ASSERT_EQ(chat({"--out", "chats.idx"}).exit_code, 0);
  EXPECT_THAT(error({"--out", "chats.idx", "--loss", "all"}, 2), HasSubstr("'chats.bin' exists."));
  const ProcessResult result = chat({"--out", "chats.idx", "--loss", "all", "--force"});
  EXPECT_EQ(result.out, "chats.idx: 3 documents, 18 tokens of uint16\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "chats.loss"));
  EXPECT_EQ(text_of(sdk::IndexedRows((folder_ / "chats").string()), 1), "u:e;");
}

TEST_F(DataChat, NamesTheLineOfAConversationThatCannotBeRendered) {
  EXPECT_THAT(error({"--out", "chats.bin"}, 2),
              HasSubstr("--out: must end in .idx, for documents as Megatron-LM has them; got 'chats.bin'."));
  const std::string contents = "{% for m in messages %}{{ m.content }}{% endfor %}";
  write_template("{% if messages | length < 2 %}{{ raise_exception('too short') }}{% endif %}" + contents);
  EXPECT_THAT(error({"--out", "x.idx", "--loss", "all"}, 1),
              HasSubstr("chats.jsonl:2: tok/chat_template.jinja:1: the template raises: too short"));
  write_template("{{ messages | length }}" + contents);
  EXPECT_THAT(error({"--out", "x.idx"}, 1),
              HasSubstr("chats.jsonl:1: the template renders what stands before message 1 of the assistant otherwise "
                        "once the message follows"));
  EXPECT_THAT(error({"--out", "x.idx", "--key", "turns"}, 1),
              HasSubstr("chats.jsonl:1: has no messages under \"turns\". Name the member with --key."));
  write_bytes(folder_ / "chats.jsonl", "{\"messages\": [{\"content\": \"a\"}]}\n");
  EXPECT_THAT(error({"--out", "x.idx"}, 1),
              HasSubstr("chats.jsonl:1: \"messages\" must be a list of objects with a \"role\", a text."));
  write_rows("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  std::filesystem::remove(folder_ / "tok/chat_template.jinja");
  EXPECT_THAT(error({"--out", "x.idx"}, 1), HasSubstr("'tok' has no chat template: neither chat_template.jinja nor "));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.idx"));
}

TEST_F(DataChat, WritesTheIdsAndMasksOfTransformers) {
  const std::string python = test::reader_python();
  if (python.empty()) GTEST_SKIP() << test::kNoReaders;
  const ProcessResult result =
      run_process({python, CAPSTAN_TEST_SOURCE_DIR "/tests/cli/chat_masks.py", kCapstan, folder_.path().string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("3 conversations are equal"));
}

}  // namespace
}  // namespace capstan::cli

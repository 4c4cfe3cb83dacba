// `capstan data chat`: conversations to tokens and a loss mask, with a tokenizer of bytes that the tests write.

#include <gmock/gmock.h>

#include "capstan/sdk/indexed_file.hpp"
#include "core/text/json.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"
#include "tests/support/readers.hpp"

namespace capstan::cli {
namespace {

using ::testing::HasSubstr;

class DataChat : public ::testing::Test {
 protected:
  DataChat() {
    std::filesystem::create_directory(folder_ / "tok");
    write_bytes(folder_ / "tok/tokenizer.json", test::byte_tokenizer().dump());
    write_template(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}");
    write_bytes(folder_ / "chats.jsonl",
                R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]})"
                "\n"
                R"({"messages": [{"role": "user", "content": "e"}]})"
                "\n"
                R"({"messages": [{"role": "assistant", "content": "f"}]})"
                "\n");
  }

  void write_template(const std::string& text) const { write_bytes(folder_ / "tok/chat_template.jinja", text); }
  ProcessResult chat(std::vector<std::string> more) const {
    std::vector<std::string> words = {"data", "chat", "chats.jsonl", "--tokenizer", "tok"};
    words.insert(words.end(), more.begin(), more.end());
    return run_capstan(folder_, words);
  }
  std::string error(const std::vector<std::string>& more, int exit_code) const {
    const ProcessResult result = chat(more);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return result.err;
  }
  std::string text_of(const sdk::IndexedRows& rows, std::int64_t row) const {
    std::string text;
    for (const std::int64_t token : rows.row(row)) text += token < 256 ? static_cast<char>(token) : '#';
    return text;
  }
  /// The text, with '_' for each token that the loss does not count.
  std::string counted_text(const std::string& name) const {
    const sdk::IndexedRows rows((folder_ / name).string());
    const std::string mask = read_bytes(folder_ / (name + ".loss"));
    std::string text;
    for (std::int64_t row = 0; row < rows.rows(); ++row) text += text_of(rows, row);
    EXPECT_EQ(mask.size(), (text.size() + 7) / 8);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if ((static_cast<unsigned char>(mask[i / 8]) >> (i % 8) & 1) == 0) text[i] = '_';
    }
    return text;
  }

  TemporaryFolder folder_;
};

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
  write_template("{% if messages | length < 2 %}{{ raise_exception('too short') }}{% endif %}x");
  EXPECT_THAT(error({"--out", "x.idx", "--loss", "all"}, 1),
              HasSubstr("chats.jsonl:2: tok/chat_template.jinja:1: the template raises: too short"));
  write_template("{{ messages | length }}");
  EXPECT_THAT(error({"--out", "x.idx"}, 1),
              HasSubstr("chats.jsonl:1: the template renders what stands before message 1 of the assistant otherwise "
                        "once the message follows"));
  EXPECT_THAT(error({"--out", "x.idx", "--key", "turns"}, 1),
              HasSubstr("chats.jsonl:1: has no messages under \"turns\". Name the member with --key."));
  write_bytes(folder_ / "chats.jsonl", "{\"messages\": [{\"content\": \"a\"}]}\n");
  EXPECT_THAT(error({"--out", "x.idx"}, 1),
              HasSubstr("chats.jsonl:1: \"messages\" must be a list of objects with a \"role\", a text."));
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

// The kinds of rows that `capstan data chat` reads, and what of them the loss counts.

#include "tests/cli/data_chat_fixture.hpp"

namespace capstan::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(DataChat, ReadsConversationsAsShareGptHasThem) {
  write_rows(
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "ab"}, {"from": "gpt", )"
      R"("value": "cd"}, {"from": "tool", "value": "e"}, {"from": "gpt", "value": "f"}]})"
      "\n");
  const ProcessResult result = chat({"--out", "chats.idx"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(text_of(sdk::IndexedRows((folder_ / "chats").string()), 0), "s:s;u:ab;a:cd;t:e;a:f;");
  EXPECT_EQ(counted_text("chats"), "___________cd;______f;");
}

TEST_F(DataChat, ReadsPromptsAndCompletionsOfMessagesAndOfText) {
  write_rows(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})"
      "\n"
      R"({"prompt": "ab", "completion": "cd", "tools": null})"
      "\n");
  const std::string second = "__cd#";
  // Of a prompt no turn counts; the end token stands behind texts alone.
  const ProcessResult result = chat({"--out", "turns.idx", "--end-token", "<end>"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(counted_text("turns"), "______________d;#" + second);
  EXPECT_THAT(result.out, HasSubstr("turns.idx: 2 documents, 22 tokens of uint16, 6 of them the assistant's\n"));
  const ProcessResult completions = chat({"--out", "completions.idx", "--loss", "completion", "--end-token", "256"});
  EXPECT_THAT(completions.out, HasSubstr("22 tokens of uint16, 6 of them of completions\n"));
  EXPECT_EQ(counted_text("completions"), "______________d;#" + second);
}

TEST_F(DataChat, EndsTextsWithTheEndOfTextTokenAndConversationsAsTheTemplateDoes) {
  write_bytes(folder_ / "tok/tokenizer_config.json", R"({"eos_token": "<end>"})");
  write_rows(R"({"text": "ab"})"
             "\n"
             R"({"text": ""})"
             "\n"
             R"({"messages": [{"role": "user", "content": "c"}]})"
             "\n");
  const ProcessResult result = chat({"--out", "all.idx", "--loss", "all"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "all.idx: 2 documents, 7 tokens of uint16; 1 row without text left out\n");
  const sdk::IndexedRows rows((folder_ / "all").string());
  EXPECT_EQ(text_of(rows, 0), "ab#");
  EXPECT_EQ(text_of(rows, 1), "u:c;");
}

TEST_F(DataChat, HandsToolsToTheTemplateAlsoWhereTheyAreWrittenAsAText) {
  write_template("{{ tools[0].name if tools }}{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}");
  const std::string rest = R"("messages": [{"role": "user", "content": "c"}]})";
  write_rows(R"({"tools": [{"name": "t"}], )" + rest + "\n" + R"({"tools": "[{\"name\": \"t\"}]", )" + rest + "\n");
  ASSERT_EQ(chat({"--out", "all.idx", "--loss", "all"}).exit_code, 0);
  const sdk::IndexedRows rows((folder_ / "all").string());
  EXPECT_EQ(text_of(rows, 0), "tu:c;");
  EXPECT_EQ(text_of(rows, 1), "tu:c;");
  EXPECT_THAT(row_error(R"({"tools": {"name": "t"}, )" + rest),
              HasSubstr("chats.jsonl:1: \"tools\" must be a list, or a list that is written as a text."));
}

TEST_F(DataChat, NamesRowsFromWhichItDoesNotTrain) {
  EXPECT_THAT(row_error(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
              HasSubstr("chats.jsonl:1: has \"chosen\", so that it is a pair of preferences, and this command reads "
                        "answers to learn. Write the chosen answer as {\"prompt\": ..., \"completion\": ...}."));
  EXPECT_THAT(row_error(R"({"prompt": "a", "completion": "b", "label": true})"),
              HasSubstr("chats.jsonl:1: has \"label\", so that it holds judged answers, and this command reads answers "
                        "to learn."));
  EXPECT_THAT(row_error(R"({"instruction": "a", "output": "b"})"),
              HasSubstr("chats.jsonl:1: has nothing to learn: its members are \"instruction\", \"output\". Known rows "
                        "have \"messages\", \"conversations\", \"prompt\" and \"completion\", or \"text\"; --key names "
                        "another member for messages."));
  EXPECT_THAT(row_error("[1]"), HasSubstr("chats.jsonl:1: is not an object. Known rows have "));
  EXPECT_THAT(row_error(R"({"messages": []})"), HasSubstr("chats.jsonl:1: has no messages under \"messages\"."));
  EXPECT_THAT(row_error(R"({"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]})"),
              HasSubstr("chats.jsonl:1: \"prompt\" and \"completion\" must be two texts, or two lists of messages."));
  EXPECT_THAT(row_error(R"({"conversations": [{"from": "bing", "value": "a"}]})"),
              HasSubstr("chats.jsonl:1: \"conversations\", message 0: \"from\" is 'bing'. Known are human, user, gpt, "
                        "assistant, system and tool."));
  EXPECT_THAT(row_error(R"({"text": "a"})"),
              HasSubstr("chats.jsonl:1: is a text, in which nothing tells what is to be learned. Take --loss all, or "
                        "rows with \"prompt\" and \"completion\"."));
  EXPECT_THAT(
      row_error(R"({"messages": [{"role": "assistant", "content": "a"}]})", {"--loss", "completion"}),
      HasSubstr("chats.jsonl:1: has no \"prompt\" and \"completion\", and --loss completion counts completions. "
                "Take --loss assistant."));
}

TEST_F(DataChat, NamesARoleOfWhichTheTemplateRendersNothing) {
  write_template(
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.role[0] }}:{{ m.content }};{% endif %}"
      "{% endfor %}");
  EXPECT_THAT(row_error(R"({"messages": [{"role": "user", "content": "a"}, {"role": "critic", "content": "b"}, )"
                        R"({"role": "assistant", "content": "c"}]})"),
              HasSubstr("chats.jsonl:1: message 1 has the role 'critic', and the template renders nothing of it. Use a "
                        "template that knows the role."));
}

TEST_F(DataChat, NamesAPromptThatTheTemplateRendersOtherwiseOnceTheCompletionFollows) {
  write_template("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_THAT(row_error(R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", )"
                        R"("content": "b"}]})",
                        {"--loss", "completion"}),
              HasSubstr("chats.jsonl:1: the template renders the prompt otherwise once the completion follows, so that "
                        "the tokens of the completion are not known. Use another template, or --loss all."));
}

TEST_F(DataChat, LeavesOutAndCountsBadRowsWhereAsked) {
  write_rows(
      "{\"messages\": [}\n"
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
      "\n"
      R"({"chosen": "a", "rejected": "b"})"
      "\n");
  EXPECT_THAT(error({"--out", "x.idx"}, 1), HasSubstr("chats.jsonl:1: "));
  const ProcessResult result = chat({"--out", "chats.idx", "--skip-bad"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "chats.idx: 1 document, 8 tokens of uint16, 2 of them the assistant's; 2 bad rows left out\n");
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("warning: chats.jsonl:1: "), HasSubstr("warning: chats.jsonl:3: has \"chosen\""),
                    HasSubstr(" The row is left out.")));
  // What the model lacks is no fault of the rows.
  std::filesystem::remove(folder_ / "tok/chat_template.jinja");
  EXPECT_THAT(error({"--out", "y.idx", "--skip-bad"}, 1), HasSubstr("'tok' has no chat template: "));
}

}  // namespace
}  // namespace capstan::cli

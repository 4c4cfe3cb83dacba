#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "capstan/sdk/indexed_file.hpp"
#include "tests/cli/programs.hpp"
#include "tests/support/byte_tokenizer.hpp"

namespace capstan::cli {

/// A tokenizer of bytes with a chat template, and three conversations.
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
  void write_rows(const std::string& lines) const { write_bytes(folder_ / "chats.jsonl", lines); }
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
  /// What is wrong with the only row.
  std::string row_error(const std::string& row, std::vector<std::string> more = {}) const {
    write_rows(row + "\n");
    more.insert(more.end(), {"--out", "bad.idx"});
    return error(more, 1);
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

}  // namespace capstan::cli

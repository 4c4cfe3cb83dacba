// `capstan data stats`: how many documents and tokens files have, how long documents are, and what packing them saves.

#include <algorithm>
#include <optional>

#include "cli/commands.hpp"
#include "cli/data/chat_encoder.hpp"
#include "cli/data/chat_rows.hpp"
#include "cli/data/data_formats.hpp"
#include "cli/data/data_output.hpp"
#include "cli/data/document_stats.hpp"
#include "cli/data/indexed_documents.hpp"
#include "cli/data/json_rows.hpp"
#include "cli/data/reading_progress.hpp"
#include "cli/data/text_documents.hpp"
#include "cli/data/token_record.hpp"
#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "cli/usage_error.hpp"
#include "core/errors.hpp"
#include "core/text/tokenizer/document_encoder.hpp"

namespace capstan::cli {
namespace {

/// Counts the tokens, or bytes, of documents as they are read.
class CountedDocuments final : public TokenSink {
 public:
  explicit CountedDocuments(DocumentStats& stats) : stats_(stats) {}
  void append(std::span<const std::int64_t> tokens) override { length_ += static_cast<std::int64_t>(tokens.size()); }
  void end_document() override {
    stats_.add(length_, std::nullopt);
    length_ = 0;
  }
  void finish() override {}

 private:
  DocumentStats& stats_;
  std::int64_t length_ = 0;
};

/// Counts the tokens of texts.
class CountedTexts final : public TextSink {
 public:
  CountedTexts(const tokenizer::Tokenizer& tokenizer, DocumentStats& stats)
      : stats_(stats),
        encoder_(tokenizer, [this](std::span<const tokenizer::Id> ids) { length_ += std::ssize(ids); }) {}
  void append(std::string_view text) override { encoder_.append(text); }
  void end_document() override {
    encoder_.finish();
    stats_.add(length_, std::nullopt);
    length_ = 0;
  }
  // Files are read whole here.
  void begin_within(std::string_view) override {}
  void end_within() override {}

 private:
  DocumentStats& stats_;
  tokenizer::DocumentEncoder encoder_;
  std::int64_t length_ = 0;
};

/// Counts the tokens of rows: of conversations by a model's chat template, of texts as they are.
class CountedRows {
 public:
  CountedRows(const ModelText& text, const DataStatsArguments& arguments, DocumentStats& stats)
      : key_(arguments.key),
        row_length_(static_cast<std::size_t>(arguments.row_length)),
        encoder_(text, {.chat_template = arguments.chat_template, .end_token = "none", .loss = ChatLoss::kAssistant}),
        contents_(text.tokenizer()),
        stats_(stats) {}

  void take(const Json& json) {
    const Json* named = key_.empty() ? nullptr : json.find(key_);
    if (named != nullptr && !named->is_array()) {
      const std::string* text = text_of_row(json, key_);
      return take_text(text == nullptr ? "" : *text);
    }
    const ChatRow row = chat_row(json, key_);
    if (!row.is_conversation() && !row.has_prompt) return take_text(row.text);
    const EncodedRow encoded = encoder_.encode(row);
    const auto tokens = std::ssize(encoded.ids);
    const std::size_t room = row_length_ > 0 ? std::min(row_length_, encoded.ids.size()) : encoded.ids.size();
    if (!encoded.has_label(room)) {
      ++stats_.without_label;
      return;
    }
    const auto counted = std::count(encoded.counts.begin(), encoded.counts.end(), true);
    stats_.add(tokens, counted);
    if (row.is_conversation()) count_roles(row.messages, tokens);
  }

 private:
  void take_text(const std::string& text) {
    tokenizer::Ids ids;
    contents_.encode(text, ids);
    stats_.add(std::ssize(ids), std::nullopt);
  }
  void count_roles(const Json& messages, std::int64_t tokens) {
    for (const Json& message : messages.as_array()) {
      const Json* content = message.find("content");
      if (content == nullptr || !content->is_string()) continue;
      tokenizer::Ids ids;
      contents_.encode(content->as_string(), ids);
      stats_.roles[message.at("role").as_string()] += std::ssize(ids);
      tokens -= std::ssize(ids);
    }
    stats_.roles["template"] += tokens;
  }

  std::string key_;
  std::size_t row_length_;  // 0: not given
  ChatEncoder encoder_;
  tokenizer::Encoder contents_;
  DocumentStats& stats_;
};

void count_index(const std::string& path, DocumentStats& stats) {
  const IndexedDocuments documents(path);
  for (std::int64_t i = 0; i < documents.documents(); ++i) {
    if (i % 4096 == 0) check_interrupts();
    const IndexedDocuments::Place place = documents.document(i);
    stats.add(place.size, documents.has_mask() ? std::optional(documents.counted(place)) : std::nullopt);
  }
  if (!documents.is_packed()) return;
  stats.add_rows(documents.rows(), documents.row_length(), documents.documents(), documents.tokens());
}

/// Counts one file after another; the tokens of text where there is a tokenizer, and otherwise its bytes.
class Counting {
 public:
  Counting(const DataStatsArguments& arguments, const std::vector<std::string>& paths, DocumentStats& stats)
      : arguments_(arguments), stats_(stats), progress_(paths) {
    if (arguments.tokenizer.empty()) return;
    text_.emplace(arguments.tokenizer);
    texts_.emplace(text_->tokenizer(), stats);
    rows_.emplace(*text_, arguments, stats);
  }

  void count(const std::string& path, const std::string& format) {
    const auto on_progress = [&](std::uint64_t bytes) {
      check_interrupts();
      progress_.add(bytes);
    };
    if (format == "indexed") return count_index(path, stats_);
    if (text_ && is_row_format(format)) {
      const RowOptions options{.columns = chat_columns(arguments_.key), .on_progress = on_progress};
      return read_json_rows(path, format, options, [&](const Json& row) { rows_->take(row); });
    }
    if (text_ && format == "bytes") return read_texts(path, "text", {.on_progress = on_progress}, *texts_);
    count_tokens(path, format);
  }

 private:
  void count_tokens(const std::string& path, const std::string& format) {
    const std::int64_t end = end_of_documents(arguments_.end_token, TokenRecord::read_of(path, format));
    CountedDocuments documents(stats_);
    const std::string key = arguments_.key.empty() ? "text" : arguments_.key;
    read_tokens(path, format, {.key = key, .end_token = end, .on_chunk = check_interrupts}, documents);
  }

  const DataStatsArguments& arguments_;
  DocumentStats& stats_;
  ReadingProgress progress_;
  std::optional<ModelText> text_;
  std::optional<CountedTexts> texts_;
  std::optional<CountedRows> rows_;
};

/// Bytes and tokens cannot be added up.
void refuse_mixture(const std::vector<std::pair<std::string, std::string>>& inputs, bool has_tokenizer) {
  const auto is_bytes = [&](const auto& input) {
    return !has_tokenizer && (input.second == "bytes" || is_row_format(input.second));
  };
  for (const auto& input : inputs) {
    if (is_bytes(input) == is_bytes(inputs.front())) continue;
    throw UsageError("'" + inputs.front().first + "' and '" + input.first +
                     "' are text and tokens, which are not counted together. Name a --tokenizer for the text, or leave "
                     "one of them out.");
  }
}

}  // namespace

int data_stats(const DataStatsArguments& arguments) {
  if (!arguments.chat_template.empty() && arguments.tokenizer.empty()) {
    throw UsageError("--chat-template: counts conversations by their tokens. Name a --tokenizer as well.");
  }
  const std::vector<std::string> paths = with_files_of_folders(arguments.inputs);
  return run_interruptible(
      [&] {
        std::vector<std::pair<std::string, std::string>> inputs;
        inputs.reserve(paths.size());
        for (const std::string& path : paths) {
          inputs.emplace_back(path, arguments.from.empty() ? format_of(path) : arguments.from);
        }
        refuse_mixture(inputs, !arguments.tokenizer.empty());
        DocumentStats stats(arguments.row_length);
        const std::string& first = inputs.front().second;
        if (arguments.tokenizer.empty() && (first == "bytes" || is_row_format(first))) stats.unit = "byte";
        Counting counting(arguments, paths, stats);
        for (const auto& [path, format] : inputs) counting.count(path, format);
        if (stats.documents() == 0) throw RuntimeFault("the inputs hold no document.");
        print(arguments.json ? stats.json().dump() + "\n" : stats.text(Terminal(1).width()));
      },
      "interrupted");
}

}  // namespace capstan::cli

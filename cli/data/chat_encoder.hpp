#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/data/chat_rows.hpp"
#include "core/pretrained/model_text.hpp"

namespace capstan::cli {

/// Which tokens the loss counts: those that the assistant writes, those of completions, or all.
enum class ChatLoss { kAssistant, kCompletion, kAll };

/// The tokens of a row, and whether the loss counts each; `counts` is empty where it counts all.
struct EncodedRow {
  tokenizer::Ids ids;
  std::vector<bool> counts;

  /// Whether the loss counts a token behind the first of the first `room`: no label stands for the first.
  bool has_label(std::size_t room) const;
};

/// A model's files lack what rows need, whatever the rows are: a chat template. The text says what.
class UnusableModel : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Turns rows into tokens: conversations by a model's chat template, texts as they are.
class ChatEncoder {
 public:
  struct Options {
    std::string chat_template;  // a file; empty: the model's own
    std::string end_token;  // a token's text or id, "none"; empty: none behind conversations, eos_token behind texts
    ChatLoss loss;
  };

  /// Throws UsageError for an end token that is not there. `text` outlives the encoder.
  ChatEncoder(const ModelText& text, Options options);

  /// Throws RuntimeFault and ConfigError for a row that cannot be used; UnusableModel, or for an eos_token that is
  /// missing UsageError, where the model lacks what rows of its kind need.
  EncodedRow encode(const ChatRow& row);

  tokenizer::Id end_token() const { return end_; }

 private:
  using Parts = std::vector<std::pair<std::size_t, std::size_t>>;

  EncodedRow encode_conversation(const ChatRow& row);
  EncodedRow encode_text(const ChatRow& row);
  Parts counted_parts(const ChatRow& row, const text_template::Rendered& rendered) const;
  std::size_t prompt_bytes(const ChatRow& row, const std::string& rendered) const;
  void refuse_unknown_roles(const ChatRow& row, const std::string& rendered);
  /// Ends the document, as a token that the loss counts.
  static void end(EncodedRow& row, tokenizer::Id token);

  const ModelText& text_;
  Options options_;
  tokenizer::Encoder encoder_;
  tokenizer::Id end_;                                    // behind conversations
  std::optional<tokenizer::Id> text_end_;                // behind texts; nothing: not asked for yet
  std::optional<text_template::ChatTemplate> template_;  // nothing: no conversation came yet
  std::set<std::string, std::less<>> known_roles_;       // which the template writes
};

}  // namespace capstan::cli

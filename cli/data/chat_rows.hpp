#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/text/json.hpp"

namespace capstan::cli {

/// A row of data for training on answers: a conversation, or a text.
struct ChatRow {
  Json messages;            // a conversation: a list of {"role", "content", ...}; null: the row is a text
  Json tools;               // of a conversation; null: none
  std::size_t prompt = 0;   // messages, or bytes of the text, that come before the completion
  bool has_prompt = false;  // the row has a prompt and a completion
  std::string text;

  bool is_conversation() const { return messages.is_array(); }
};

/// The members of rows that chat_row() reads; `key`: as there.
std::vector<std::string> chat_columns(const std::string& key);

/// Reads a row: messages under `key`, or without one by its members, the first that it has of
///   {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}
///   {"conversations": [{"from": "human", "value": "..."}, ...]}          as ShareGPT has them
///   {"prompt": "...", "completion": "..."}, or both lists of messages    as trl has them
///   {"text": "..."}
/// Throws RuntimeFault for another row: pairs of preferences and the like are named.
ChatRow chat_row(const Json& row, const std::string& key);

}  // namespace capstan::cli

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/text/json.hpp"

namespace capstan::tokenizer {

/// How a tokenizer of tiktoken splits words, and its special tokens by their ids: not a part of its file of ranks.
struct TiktokenKind {
  std::string pattern;
  std::map<std::int64_t, std::string> special;
};

/// Whether bytes begin as a file of ranks does, with a line of base64, a space and a number.
bool is_tiktoken(std::string_view bytes);

/// The kind of a name: cl100k_base, gpt2, llama3 (whose special tokens stand elsewhere), o200k_base, p50k_base, qwen,
/// r50k_base; nothing for another name.
std::optional<TiktokenKind> known_tiktoken(std::string_view name);
/// "cl100k_base, gpt2, ..."
std::string known_tiktoken_names();

/// A tokenizer.json, without post-processor, of the bytes of a file of ranks. `where` opens messages. Throws
/// RuntimeFault: a line that is damaged, a token or a rank that is there twice, a special token whose id is a rank.
Json tokenizer_of_tiktoken(std::string_view bytes, const TiktokenKind& kind, const std::string& where);

}  // namespace capstan::tokenizer

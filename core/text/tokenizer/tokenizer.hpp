#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json.hpp"

namespace capstan::tokenizer {

using Id = std::int32_t;
using Ids = std::vector<Id>;
inline constexpr Id kNoId = -1;

/// A tokenizer of Hugging Face's tokenizers library, as tokenizer.json describes it: gives the ids that the library
/// gives, but for characters whose properties differ between versions of Unicode. Several threads may use one.
class Tokenizer {
 public:
  /// Reads FILE, or of a folder tokenizer.json, or else tokenizer.model or *.tiktoken, as tokenizer_files.hpp converts
  /// them. Throws RuntimeFault with file and JSON path for a file that is missing, damaged, or asks for what is not
  /// supported.
  explicit Tokenizer(const std::filesystem::path& file_or_folder);
  /// Of the contents of tokenizer.json. `file`: for messages. Throws RuntimeFault likewise.
  Tokenizer(const Json& contents, const std::filesystem::path& file);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  /// The file that was read.
  const std::filesystem::path& file() const;
  /// One more than the largest id: what a model's vocabulary must have room for.
  Id vocabulary_size() const;
  /// The id of a token's text, or kNoId.
  Id find(std::string_view text) const;
  /// The text of a token as the file has it, or null.
  const std::string* text(Id id) const;
  /// Whether a token stands for no text.
  bool is_special(Id id) const;
  /// The special tokens that the post-processor puts before and behind a text.
  const Ids& before() const;
  const Ids& after() const;
  /// Whether the tokens of every text decode to it: bytes are tokens, and nothing rewrites the text or leaves out some.
  bool keeps_every_text() const;
  /// Members of the file that ask for what encode() does not do: "truncation", "padding".
  const std::vector<std::string>& unused_members() const;

 private:
  friend class Encoder;
  friend class DecodeStream;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Tokenizes texts. Remembers frequent words, so that one encoder for many texts is fast. One thread uses it; its
/// tokenizer outlives it.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();

  /// Appends the tokens of a text, without the special tokens around it. Special tokens that are written in the text
  /// are found. Throws RuntimeFault where the text is not UTF-8, or has a character that the tokenizer refuses.
  void encode(std::string_view text, Ids& ids);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Turns the tokens of one text into the text, as they come: what push() and finish() return is the whole text, and no
/// piece of it ends within a character. One thread uses it; its tokenizer outlives it.
class DecodeStream {
 public:
  enum class Special { kSkip, kKeep };

  explicit DecodeStream(const Tokenizer& tokenizer, Special special = Special::kSkip);
  ~DecodeStream();

  /// The text that is certain now. An id without a token adds no text.
  std::string push(Id id);
  /// The rest. The next push() begins another text.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace capstan::tokenizer

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cli/data/input_pieces.hpp"
#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::cli {

/// Takes the texts of documents, one document after another.
class TextSink {
 public:
  virtual ~TextSink() = default;
  /// The next part of the document: whole characters of UTF-8.
  virtual void append(std::string_view text) = 0;
  virtual void end_document() = 0;
  /// The document goes on behind a place at which it was cut, in place of the first append(). `context`: the text
  /// before.
  virtual void begin_within(std::string_view context) = 0;
  /// The document is cut here, and goes on in another piece.
  virtual void end_within() = 0;
};

struct TextOptions {
  std::string key = "text";                              // rows: the member that holds the text
  bool replaces_invalid = false;                         // text: U+FFFD for bytes that are not UTF-8
  std::function<void(std::uint64_t bytes)> on_progress;  // called with the bytes read since; may throw
  ByteRange range{};                                     // text: cut behind its ends; jsonl: the lines that begin there
  const tokenizer::Tokenizer* tokenizer = nullptr;       // text with a range: tells where it can be cut
};

/// Bytes [begin, begin + count) of a file, as far as it has them. Throws RuntimeFault.
std::string read_range(const std::string& path, std::uint64_t begin, std::size_t count);

/// Hands the documents of a file to `sink`: the whole file for "text", one a row for row_formats(); a row whose text is
/// null is a document without text. Reads a file in parts. Throws RuntimeFault naming the file and the place:
/// unreadable, not UTF-8, what read_json_rows() throws, a row that has no text. A RuntimeFault of the sink gets the
/// file's name, or that of the row.
void read_texts(const std::string& path, const std::string& format, const TextOptions& options, TextSink& sink);

}  // namespace capstan::cli

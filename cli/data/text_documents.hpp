#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace capstan::cli {

/// Takes the texts of documents, one document after another.
class TextSink {
 public:
  virtual ~TextSink() = default;
  /// The next part of the document: whole characters of UTF-8.
  virtual void append(std::string_view text) = 0;
  virtual void end_document() = 0;
};

struct TextOptions {
  std::string key = "text";                              // jsonl: the member that holds the text
  bool replaces_invalid = false;                         // text: U+FFFD for bytes that are not UTF-8
  std::function<void(std::uint64_t bytes)> on_progress;  // called with the bytes read since; may throw
};

/// Hands the documents of a file to `sink`: the whole file for "text", one a line for "jsonl". Reads a file in parts.
/// Throws RuntimeFault naming the file and the place: unreadable, not UTF-8, a line that is not JSON or has no text.
void read_texts(const std::string& path, const std::string& format, const TextOptions& options, TextSink& sink);

}  // namespace capstan::cli

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/field.hpp"

namespace capstan::tokenizer {

/// A part of a text that a model tokenizes by itself.
struct Piece {
  std::string_view text;
  bool at_front;  // no text and no added token of the document stands before it
};
using Pieces = std::vector<Piece>;

/// Keeps rewritten pieces until clear().
class PieceTexts {
 public:
  std::string_view keep(std::string_view first, std::string_view second = {});
  void clear();

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::size_t left_ = 0;  // bytes of the last block
  char* at_ = nullptr;
};

/// Splits a text into pieces: the section "pre_tokenizer" of tokenizer.json. Several threads may use one.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Splits each piece of `in`, and appends the parts to `out`. Rewritten parts are kept in `texts`.
  virtual void split(const Pieces& in, Pieces& out, PieceTexts& texts) const = 0;
  /// Whether it leaves it to the model to take bytes for their characters.
  virtual bool leaves_bytes() const { return false; }
  /// Whether the pieces are the text, cut into parts, for every text.
  virtual bool keeps_text() const { return false; }
};

/// The pre-tokenizer of a section. `leave_bytes`: the model takes bytes where ByteLevel would give their characters.
/// Throws RuntimeFault naming the kind and its place where it is not supported.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Field& section, bool leave_bytes);

}  // namespace capstan::tokenizer

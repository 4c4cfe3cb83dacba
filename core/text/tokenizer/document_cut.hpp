#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "core/text/tokenizer/tokenizer.hpp"

namespace capstan::tokenizer {

/// Finds places at which a document may be cut, so that the tokens of the parts are the tokens of the whole: behind
/// line breaks or else before spaces, where the tokens of the text before the place are the first tokens of that text
/// together with the text behind it. Tokenizers must decide with less than `context` bytes of text. One thread uses it.
class DocumentCut {
 public:
  DocumentCut(Encoder& encoder, std::size_t context) : encoder_(encoder), context_(context) {}

  /// The first place from `last` down to `first`, or from `first` up to `last`, of which some are tried; nothing where
  /// none of them is one. 1 <= first, last + context < the size of the text, whose bytes are UTF-8 but at its ends.
  std::optional<std::size_t> last_place(std::string_view text, std::size_t first, std::size_t last);
  std::optional<std::size_t> first_place(std::string_view text, std::size_t first, std::size_t last);

  /// Where the context of a place begins.
  std::size_t context_before(std::string_view text, std::size_t place) const;
  /// How many tokens the context of the place that was found last has by itself.
  std::size_t tokens_of_context() const { return ids_.size(); }

 private:
  bool can_cut(std::string_view text, std::size_t place);
  template <class Next>
  std::optional<std::size_t> search(std::string_view text, std::size_t from, std::size_t count, Next next);

  Encoder& encoder_;
  std::size_t context_;
  Ids ids_, whole_;
};

}  // namespace capstan::tokenizer

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// Characters of UTF-8 text and their properties, by utf8proc. All functions take valid UTF-8 unless they say
/// otherwise.
namespace capstan::tokenizer {

/// Bytes of the character that a lead byte begins.
inline std::size_t length_of(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}
/// The character that begins at byte `at`.
char32_t character_at(std::string_view text, std::size_t at);
/// Bytes before which the last character of `text` begins; `text` is not empty.
std::size_t last_character(std::string_view text);
void append_character(std::string& text, char32_t character);
/// Calls use(character) for each character of the text.
template <class Use>
void each_character(std::string_view text, Use&& use) {
  for (std::size_t at = 0; at < text.size(); at += length_of(text[at])) use(character_at(text, at));
}

/// Unicode's White_Space.
bool is_white_space(char32_t character);
/// \w of Unicode TR18, annex C: Alphabetic, marks, decimal digits, connectors and joiners.
bool is_word(char32_t character);
/// The general categories Nd, Nl and No.
bool is_numeric(char32_t character);
/// ASCII punctuation and symbols, and the general category P.
bool is_punctuation(char32_t character);
/// The general categories Mn, Mc and Me.
bool is_mark(char32_t character);
/// The general category Mn.
bool is_nonspacing_mark(char32_t character);
/// The general categories Cc, Cf and Co.
bool is_control(char32_t character);
/// Ideographs, as BERT's tokenizer lists their blocks.
bool is_ideograph(char32_t character);

/// Unicode's full lower case of each character by itself.
std::string lower_case(std::string_view text);
/// Unicode's upper case of each character by itself, where it is one character; "\u00df" becomes "SS".
std::string upper_case(std::string_view text);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
/// The text in a normalization form of Unicode 15.
std::string normalized(std::string_view text, Form form);

/// Whether no extended grapheme cluster goes on from one character to the next; `state` is 0 before the first pair.
bool is_grapheme_break(char32_t before, char32_t after, int& state);

/// Offset of the first byte of any text that no valid UTF-8 sequence begins at.
std::optional<std::size_t> first_invalid_byte(std::string_view text);
/// Any bytes as UTF-8: U+FFFD stands for each maximal part of a sequence that is not valid (Unicode 15, section 3.9).
std::string replace_invalid(std::string_view bytes);
/// Bytes at the end of `bytes` that a valid sequence may still go on from; 0 to 3.
std::size_t unfinished_bytes(std::string_view bytes);

}  // namespace capstan::tokenizer

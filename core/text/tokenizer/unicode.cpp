#include "core/text/tokenizer/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "core/errors.hpp"
#include "core/text/utf8.hpp"

namespace capstan::tokenizer {
namespace {

utf8proc_category_t category_of(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool between(char32_t character, char32_t low, char32_t high) { return character >= low && character <= high; }

/// Letters in circles and squares: Alphabetic, although their category is So.
bool is_enclosed_letter(char32_t character) {
  return between(character, 0x24B6, 0x24E9) || between(character, 0x1F130, 0x1F149) ||
         between(character, 0x1F150, 0x1F169) || between(character, 0x1F170, 0x1F189);
}

bool is_ascii(char byte) { return static_cast<unsigned char>(byte) < 0x80; }

/// Appends one part of a text, in which no character before it takes part in a composition.
void append_normalized(std::string& out, std::string_view part, utf8proc_option_t options) {
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()),
                                             static_cast<utf8proc_ssize_t>(part.size()), &raw, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> made(raw, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0) throw RuntimeFault(std::string("a text cannot be normalized: ") + utf8proc_errmsg(size) + ".");
  out.append(reinterpret_cast<const char*>(made.get()), static_cast<std::size_t>(size));
}

/// Bytes of the longest front part of a sequence that could be valid: at least 1.
std::size_t maximal_part(std::string_view bytes) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  const unsigned lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4) return 1;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The lead byte bounds the byte behind it: no overlong form, no surrogate, nothing above U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  std::size_t at = 1;
  for (; at < std::min(length, bytes.size()); ++at) {
    const bool fits = at == 1 ? byte(1) >= low && byte(1) <= high : (byte(at) & 0xC0) == 0x80;
    if (!fits) break;
  }
  return at;
}

}  // namespace

char32_t character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void append_character(std::string& text, char32_t character) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

bool is_white_space(char32_t character) {
  if (character < 0x80) return character == ' ' || between(character, '\t', '\r');
  return character == 0x85 || character == 0xA0 || character == 0x1680 || between(character, 0x2000, 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F || character == 0x205F ||
         character == 0x3000;
}

bool is_word(char32_t character) {
  switch (category_of(character)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return character == 0x200C || character == 0x200D || is_enclosed_letter(character);
  }
}

bool is_numeric(char32_t character) {
  const auto category = category_of(character);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t character) {
  if (character < 0x80) {
    return between(character, '!', '/') || between(character, ':', '@') || between(character, '[', '`') ||
           between(character, '{', '~');
  }
  const auto category = category_of(character);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t character) {
  const auto category = category_of(character);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t character) { return category_of(character) == UTF8PROC_CATEGORY_MN; }

bool is_control(char32_t character) {
  const auto category = category_of(character);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
}

bool is_ideograph(char32_t character) {
  return between(character, 0x4E00, 0x9FFF) || between(character, 0x3400, 0x4DBF) ||
         between(character, 0x20000, 0x2A6DF) || between(character, 0x2A700, 0x2B73F) ||
         between(character, 0x2B740, 0x2B81F) || between(character, 0x2B920, 0x2CEAF) ||
         between(character, 0xF900, 0xFAFF) || between(character, 0x2F800, 0x2FA1F);
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](char32_t character) {
    if (character == 0x130) {
      out += "i\xCC\x87";  // the one character whose lower case is two
    } else if (character < 0x80) {
      out += static_cast<char>(character >= 'A' && character <= 'Z' ? character + 32 : character);
    } else {
      append_character(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
    }
  });
  return out;
}

std::string upper_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](char32_t character) {
    if (character == 0xDF) {
      out += "SS";
    } else {
      append_character(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))));
    }
  });
  return out;
}

std::string normalized(std::string_view text, Form form) {
  const bool composes = form == Form::kNfc || form == Form::kNfkc;
  const bool compatible = form == Form::kNfkc || form == Form::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0));
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && is_ascii(text[end])) ++end;
    // ASCII stays as it is, but a mark may compose with the character before it.
    const std::size_t kept = end < text.size() && end > at ? end - 1 : end;
    out.append(text, at, kept - at);
    at = kept;
    while (end < text.size() && !is_ascii(text[end])) ++end;
    if (end > at) append_normalized(out, text.substr(at, end - at), options);
    at = end;
  }
  return out;
}

bool is_grapheme_break(char32_t before, char32_t after, int& state) {
  return utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before), static_cast<utf8proc_int32_t>(after),
                                          &state);
}

std::optional<std::size_t> first_invalid_byte(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = kHighBits;
    if (at + sizeof eight <= text.size()) std::memcpy(&eight, text.data() + at, sizeof eight);
    if ((eight & kHighBits) == 0) {
      at += sizeof eight;
      continue;
    }
    const std::size_t length = utf8_sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::string replace_invalid(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t valid = first_invalid_byte(bytes.substr(at)).value_or(bytes.size() - at);
    out.append(bytes, at, valid);
    at += valid;
    if (at == bytes.size()) break;
    out += "\xEF\xBF\xBD";
    at += maximal_part(bytes.substr(at));
  }
  return out;
}

std::size_t unfinished_bytes(std::string_view bytes) {
  for (std::size_t count = std::min<std::size_t>(3, bytes.size()); count > 0; --count) {
    const std::string_view end = bytes.substr(bytes.size() - count);
    const auto lead = static_cast<unsigned char>(end[0]);
    if (lead >= 0xC2 && lead <= 0xF4 && count < length_of(end[0]) && maximal_part(end) == count) return count;
  }
  return 0;
}

}  // namespace capstan::tokenizer

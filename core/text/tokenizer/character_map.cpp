#include "core/text/tokenizer/character_map.hpp"

#include <cstring>
#include <optional>

#include "core/text/base64.hpp"
#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

constexpr std::size_t kLongestGrapheme = 5;  // bytes

// The parts of a unit of Darts-clone's array.
std::uint32_t offset_of_unit(std::uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }
std::uint32_t label_of_unit(std::uint32_t unit) { return unit & (1U << 31 | 0xFF); }
bool has_value(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value_of_unit(std::uint32_t unit) { return unit & ((1U << 31) - 1); }

}  // namespace

CharacterMap::CharacterMap(const Field& field) {
  const auto bytes = decode_base64(field.text());
  std::uint32_t size = 0;
  if (bytes && bytes->size() >= sizeof size) std::memcpy(&size, bytes->data(), sizeof size);
  if (!bytes || size == 0 || size % sizeof(std::uint32_t) != 0 || size > bytes->size() - sizeof size) {
    field.fail("must be base64 of a trie and its replacements, and is damaged.");
  }
  units_.resize(size / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes->data() + sizeof size, size);
  replacements_ = bytes->substr(sizeof size + size);
  if (first_invalid_byte(replacements_)) field.fail("has replacements that are not UTF-8.");
}

bool CharacterMap::find(std::string_view text, std::string_view& replacement) const {
  std::size_t node = offset_of_unit(units_[0]);
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label_of_unit(units_[node]) != byte) return false;
    const std::uint32_t unit = units_[node];
    node ^= offset_of_unit(unit);
    if (!has_value(unit)) continue;
    const std::size_t begin = node < units_.size() ? value_of_unit(units_[node]) : replacements_.size();
    // A damaged trie may point into the middle of a character.
    if (begin >= replacements_.size() || (static_cast<unsigned char>(replacements_[begin]) & 0xC0) == 0x80)
      return false;
    replacement = std::string_view(replacements_).substr(begin);
    replacement = replacement.substr(0, replacement.find('\0'));
    return true;
  }
  return false;
}

void CharacterMap::apply(std::string& text) const {
  std::string out;
  out.reserve(text.size());
  const std::string_view all = text;
  std::string_view replacement;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin + length_of(all[begin]);
    int state = 0;
    for (char32_t before = character_at(all, begin); end < all.size();) {
      const char32_t after = character_at(all, end);
      if (is_grapheme_break(before, after, state)) break;
      before = after;
      end += length_of(all[end]);
    }
    const std::string_view grapheme = all.substr(begin, end - begin);
    if (grapheme.size() <= kLongestGrapheme && find(grapheme, replacement)) {
      out += replacement;
    } else {
      for (std::size_t at = 0; at < grapheme.size(); at += length_of(grapheme[at])) {
        const std::string_view character = grapheme.substr(at, length_of(grapheme[at]));
        out += find(character, replacement) ? replacement : character;
      }
    }
    begin = end;
  }
  text = std::move(out);
}

}  // namespace capstan::tokenizer

#include "core/text/tokenizer/byte_characters.hpp"

#include <array>

#include "core/text/tokenizer/unicode.hpp"

namespace capstan::tokenizer {
namespace {

constexpr char32_t kFirstMoved = 0x100, kEndOfMoved = 0x144;

struct ByteTable {
  ByteTable() {
    char32_t moved = kFirstMoved;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const char32_t character = printable ? byte : moved++;
      append_character(texts[byte], character);
      bytes[character] = static_cast<int>(byte);
    }
  }

  std::array<std::string, 256> texts;
  std::array<int, kEndOfMoved> bytes = [] {
    std::array<int, kEndOfMoved> none{};
    none.fill(-1);
    return none;
  }();
};

const ByteTable& byte_table() {
  static const ByteTable table;
  return table;
}

}  // namespace

std::string_view character_of_byte(unsigned char byte) { return byte_table().texts[byte]; }

std::string bytes_to_characters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 2);
  for (const char byte : bytes) out += character_of_byte(static_cast<unsigned char>(byte));
  return out;
}

std::optional<std::string> characters_to_bytes(std::string_view text) {
  std::string out;
  bool known = true;
  each_character(text, [&](char32_t character) {
    const int byte = character < kEndOfMoved ? byte_table().bytes[character] : -1;
    known = known && byte >= 0;
    out += static_cast<char>(byte);
  });
  return known ? std::optional(out) : std::nullopt;
}

}  // namespace capstan::tokenizer

#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Printable characters that stand for bytes in byte-level vocabularies: GPT-2's bytes_to_unicode() (Radford et al.
/// 2019). A byte that is a printable character of Latin-1 stands for itself; the others are U+0100 and up, in their
/// order.
namespace capstan::tokenizer {

/// The character of a byte, as UTF-8.
std::string_view character_of_byte(unsigned char byte);
/// One character for each byte of the text.
std::string bytes_to_characters(std::string_view bytes);
/// The bytes that the characters of the text stand for; nothing where one stands for none.
std::optional<std::string> characters_to_bytes(std::string_view text);

}  // namespace capstan::tokenizer

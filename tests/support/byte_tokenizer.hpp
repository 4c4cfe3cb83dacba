#pragma once

#include <cstdint>
#include <string>

#include "core/text/json.hpp"

namespace capstan::test {

/// tokenizer.json with a token for each byte, whose id is the byte, and the special token "<end>", 256.
inline Json byte_tokenizer() {
  Json json = Json::parse(R"({"added_tokens": [{"id": 256, "content": "<end>", "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {}, "merges": []}})");
  // GPT-2's table: printable Latin-1 stands for itself, the rest follows from U+0100 on.
  unsigned moved = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const unsigned character = printable ? byte : moved++;
    std::string text(1, static_cast<char>(character));
    if (character >= 0x80)
      text = {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 63))};
    json["model"]["vocab"][text] = static_cast<std::int64_t>(byte);
  }
  return json;
}

}  // namespace capstan::test

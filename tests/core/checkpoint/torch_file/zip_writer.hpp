#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace capstan::test {

/// CRC-32 of ISO 3309, bit by bit.
inline std::uint32_t crc32_of(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

/// The bytes of an integer, little-endian.
template <class T>
std::string little(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

/// A zip archive of stored files.
struct ZipWriter {
  bool in_64_bits = false;   // sizes and offsets in zip64's fields
  std::uint16_t method = 0;  // stored
  std::uint16_t flags = 0;
  std::string bytes = {}, directory = {};
  std::uint64_t count = 0;

  void add(const std::string& name, std::string_view content) {
    const auto offset = static_cast<std::uint32_t>(bytes.size());
    const auto size = static_cast<std::uint32_t>(content.size());
    const auto name_size = static_cast<std::uint16_t>(name.size());
    const std::string crc = little(crc32_of(content));
    bytes += "PK\x03\x04" + little<std::uint16_t>(20) + little(flags) + little(method) + std::string(4, '\0') + crc +
             little(size) + little(size) + little(name_size) + little<std::uint16_t>(0) + name + std::string(content);
    const std::string extra = little<std::uint16_t>(1) + little<std::uint16_t>(24) + little<std::uint64_t>(size) +
                              little<std::uint64_t>(size) + little<std::uint64_t>(offset);
    const std::uint32_t elsewhere = ~0u;
    directory +=
        "PK\x01\x02" + little<std::uint16_t>(20) + little<std::uint16_t>(20) + little(flags) + little(method) +
        std::string(4, '\0') + crc + little(in_64_bits ? elsewhere : size) + little(in_64_bits ? elsewhere : size) +
        little(name_size) + little<std::uint16_t>(in_64_bits ? static_cast<std::uint16_t>(extra.size()) : 0) +
        std::string(2 + 2 + 2 + 4, '\0') + little(in_64_bits ? elsewhere : offset) + name + (in_64_bits ? extra : "");
    ++count;
  }

  std::string finished() const {
    const std::uint64_t begin = bytes.size(), end = begin + directory.size();
    std::string all = bytes + directory;
    if (in_64_bits) {
      all += "PK\x06\x06" + little<std::uint64_t>(44) + std::string(2 + 2 + 4 + 4, '\0') + little(count) +
             little(count) + little<std::uint64_t>(directory.size()) + little(begin);
      all += "PK\x06\x07" + std::string(4, '\0') + little(end) + little<std::uint32_t>(1);
    }
    const auto shown = static_cast<std::uint16_t>(in_64_bits ? 0xffff : count);
    return all + "PK\x05\x06" + std::string(4, '\0') + little(shown) + little(shown) +
           little(static_cast<std::uint32_t>(directory.size())) +
           little(in_64_bits ? ~0u : static_cast<std::uint32_t>(begin)) + little<std::uint16_t>(0);
  }
};

}  // namespace capstan::test

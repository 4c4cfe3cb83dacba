#include "core/registry/file_hash.hpp"

#include <nettle/sha2.h>

#include <array>
#include <fstream>
#include <vector>

#include "core/errors.hpp"

namespace capstan {

std::string sha256_of_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> block(1 << 16);
  const std::string digest = sha256_of([&]() -> std::span<const std::byte> {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    return std::as_bytes(std::span(block.data(), static_cast<std::size_t>(in.gcount())));
  });
  if (!in.eof()) throw PluginError(file.string() + ": cannot be read.");
  return digest;
}

std::string sha256_of(const std::function<std::span<const std::byte>()>& next) {
  sha256_ctx state;
  sha256_init(&state);
  for (auto bytes = next(); !bytes.empty(); bytes = next()) {
    sha256_update(&state, bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()));
  }
  std::array<std::uint8_t, SHA256_DIGEST_SIZE> digest;
  sha256_digest(&state, digest.size(), digest.data());
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace capstan

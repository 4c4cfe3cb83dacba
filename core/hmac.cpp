#include "core/hmac.hpp"

#include <nettle/hmac.h>
#include <nettle/memops.h>

#include <array>
#include <cstdint>

namespace capstan {
namespace {

const std::uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view text) {
  hmac_sha256_ctx state;
  hmac_sha256_set_key(&state, key.size(), bytes_of(key));
  hmac_sha256_update(&state, text.size(), bytes_of(text));
  std::array<std::uint8_t, SHA256_DIGEST_SIZE> digest;
  hmac_sha256_digest(&state, digest.size(), digest.data());
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

bool equal_secretly(std::string_view first, std::string_view second) {
  return first.size() == second.size() && memeql_sec(first.data(), second.data(), first.size()) != 0;
}

}  // namespace capstan

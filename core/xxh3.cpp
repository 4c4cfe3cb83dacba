#include "core/xxh3.hpp"

#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace capstan {

struct Xxh3::State {
  XXH3_state_t xxh;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
Xxh3::~Xxh3() = default;

void Xxh3::update(const void* bytes, std::size_t count) { XXH3_64bits_update(&state_->xxh, bytes, count); }

std::uint64_t Xxh3::digest() const { return XXH3_64bits_digest(&state_->xxh); }

std::uint64_t xxh3(const void* bytes, std::size_t count) { return XXH3_64bits(bytes, count); }

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace capstan

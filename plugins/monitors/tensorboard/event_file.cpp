#include "event_file.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>

#include "messages.hpp"

namespace capstan::monitors {
namespace {

static_assert(std::endian::native == std::endian::little, "Records hold little-endian numbers.");

constexpr auto kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

template <class Number>
std::string_view bytes_of(const Number& number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

std::string file_name(double wall_time) {
  static std::atomic<int> next{0};
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%010.0f", std::floor(wall_time));
  return std::string("events.out.tfevents.") + seconds + "." + host + "." + std::to_string(::getpid()) + "." +
         std::to_string(next++);
}

std::filesystem::path created(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  constexpr std::uint32_t kOffset = 0xa282ead8;
  return std::rotr(crc32c(bytes), 15) + kOffset;
}

std::string record(std::string_view payload) {
  const std::uint64_t length = payload.size();
  const std::uint32_t length_crc = masked_crc32c(bytes_of(length)), payload_crc = masked_crc32c(payload);
  std::string out;
  out.reserve(payload.size() + 16);
  out.append(bytes_of(length)).append(bytes_of(length_crc)).append(payload).append(bytes_of(payload_crc));
  return out;
}

EventFile::EventFile(const std::filesystem::path& folder, double wall_time)
    : file_(created(folder) / file_name(wall_time), record(version_event(wall_time))) {}

void EventFile::add(std::string_view event) { pending_ += record(event); }

void EventFile::flush() {
  if (pending_.empty()) return;
  file_.append(pending_);
  pending_.clear();
}

}  // namespace capstan::monitors

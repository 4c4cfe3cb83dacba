#include "core/checkpoint/copy_past_caches.hpp"

#include <hwy/cache_control.h>

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/checkpoint/copy_past_caches.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace capstan::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLine = 64;  // bytes of a line of the caches

/// Whole lines to where one begins.
void stream_lines(std::uint8_t* to, const std::uint8_t* from, std::size_t count) {
  const hn::CappedTag<std::uint8_t, kLine> bytes;
  const std::size_t lanes = hn::Lanes(bytes);
  for (std::size_t line = 0; line < count; line += kLine) {
    for (std::size_t at = line; at < line + kLine; at += lanes) {
      hn::Stream(hn::LoadU(bytes, from + at), bytes, to + at);
    }
  }
}

}  // namespace capstan::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan {
namespace {

HWY_EXPORT(stream_lines);

constexpr std::size_t kLine = 64;

}  // namespace

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t count) {
  // A line that is written in part would be fetched for it.
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  if (count < before + kLine) {
    std::memcpy(to, from, count);
    return;
  }
  const std::size_t lines = (count - before) / kLine * kLine, behind = before + lines;
  std::memcpy(to, from, before);
  HWY_DYNAMIC_DISPATCH(stream_lines)
  (reinterpret_cast<std::uint8_t*>(to + before), reinterpret_cast<const std::uint8_t*>(from + before), lines);
  std::memcpy(to + behind, from + behind, count - behind);
}

void flush_copies() { hwy::FlushStream(); }

}  // namespace capstan
#endif  // HWY_ONCE

#include "core/zero/coded_parts.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/host_tensor.hpp"
#include "core/zero/code_operators.hpp"

namespace capstan {
namespace {

constexpr std::int64_t kGrain = Partition::kBlock;  // elements, a multiple of those in a byte

/// Where scales, zero points and codes stand in the bytes of a part.
struct Places {
  Places(const CodeFormat& format, const Range& part, std::uint8_t* bytes)
      : scales(bytes),
        zero_points(scales + 4 * format.groups_in(part)),
        codes(zero_points + (format.zero_points ? 4 * format.groups_in(part) : 0)) {}
  std::uint8_t *scales, *zero_points, *codes;
};

/// Calls use(group, begin, end) for the elements [from, to) of a part, group by group; groups count from the part's
/// first.
template <class Use>
void for_each_group(const CodeFormat& format, const Range& part, std::int64_t from, std::int64_t to, Use&& use) {
  const std::int64_t first = part.offset / format.group_size;
  for (std::int64_t at = from; at < to;) {
    const std::int64_t group = (part.offset + at) / format.group_size;
    const std::int64_t stop = std::min(to, (group + 1) * format.group_size - part.offset);
    use(group - first, at, stop);
    at = stop;
  }
}

float load(const std::uint8_t* bytes, std::int64_t index) {
  float value = 0;
  std::memcpy(&value, bytes + 4 * index, sizeof value);
  return value;
}

float zero_point(const CodeFormat& format, const std::uint8_t* bytes, std::int64_t index) {
  if (!format.zero_points) return 0;
  std::int32_t value = 0;
  std::memcpy(&value, bytes + 4 * index, sizeof value);
  return static_cast<float>(value);
}

/// Puts codes, as numbers from 0 on, into bytes; the lowest bits come first.
void pack(int width, std::int64_t from, std::int64_t to, const std::uint8_t* codes, std::uint8_t* out) {
  const std::int64_t each = 8 / width;
  for (std::int64_t at = from; at < to; at += each) {
    unsigned byte = 0;
    for (std::int64_t k = 0; k < each && at + k < to; ++k) byte |= unsigned{codes[at + k - from]} << (width * k);
    out[at / each] = static_cast<std::uint8_t>(byte);
  }
}

void unpack(int width, std::int64_t from, std::int64_t to, const std::uint8_t* in, std::uint8_t* codes) {
  const std::int64_t each = 8 / width;
  const auto mask = static_cast<unsigned>((1 << width) - 1);
  for (std::int64_t at = from; at < to; ++at) {
    codes[at - from] = static_cast<std::uint8_t>((in[at / each] >> (width * (at % each))) & mask);
  }
}

}  // namespace

int CodeFormat::width() const { return bits <= 2 ? 2 : bits <= 4 ? 4 : 8; }

std::int64_t CodeFormat::groups_in(const Range& range) const {
  return range.numel == 0 ? 0 : (range.offset + range.numel - 1) / group_size - range.offset / group_size + 1;
}

std::int64_t CodeFormat::bytes(const Range& range) const {
  return scale_bytes(range) + (range.numel * width() + 7) / 8;
}

at::Tensor encode_on_cpu(const at::Tensor& values, const at::Tensor& made_scales,
                         const std::optional<at::Tensor>& zero_points, std::int64_t offset, std::int64_t group_size,
                         std::int64_t bits) {
  const CodeFormat format = check_part(values, offset, group_size, bits, zero_points.has_value());
  const Range part{offset, values.numel()};
  check_scales(format, part, made_scales, zero_points);
  const at::Tensor bytes = host_empty({format.bytes(part)}, at::kByte);
  if (part.numel == 0) return bytes;
  const Places to(format, part, bytes.mutable_data_ptr<std::uint8_t>());
  const auto groups = static_cast<std::size_t>(format.groups_in(part));
  std::memcpy(to.scales, made_scales.const_data_ptr<float>(), 4 * groups);
  if (zero_points) std::memcpy(to.zero_points, zero_points->const_data_ptr<std::int32_t>(), 4 * groups);
  const int width = format.width();
  const float lowest = -static_cast<float>(1 << (width - 1)), highest = static_cast<float>((1 << width) - 1);
  at::parallel_for(0, part.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin / kGrain * kGrain; at < end; at += kGrain) {
      if (at < begin) continue;  // the thread of the block's beginning does it
      const std::int64_t stop = std::min(at + kGrain, part.numel);
      const at::Tensor wide = values.narrow(0, at, stop - at).to(at::kFloat);
      const auto* x = wide.const_data_ptr<float>();
      std::uint8_t codes[kGrain];
      for_each_group(format, part, at, stop, [&](std::int64_t group, std::int64_t from, std::int64_t until) {
        const float scale = load(to.scales, group), shift = zero_point(format, to.zero_points, group) - lowest;
        for (std::int64_t i = from; i < until; ++i) {
          const float level = scale != 0 ? std::nearbyint(x[i - at] / scale) : 0.0f;
          // A float16 may have overflowed to infinity.
          const float code = level + shift > 0 ? level + shift : 0.0f;
          codes[i - at] = static_cast<std::uint8_t>(code < highest ? code : highest);
        }
      });
      pack(width, at, stop, codes, to.codes);
    }
  });
  return bytes;
}

void decode_on_cpu(const at::Tensor& bytes, std::int64_t offset, std::int64_t group_size, std::int64_t bits,
                   bool zero_points, const at::Tensor& values) {
  const CodeFormat format = check_part(values, offset, group_size, bits, zero_points);
  const Range part{offset, values.numel()};
  check_bytes(format, part, bytes);
  if (part.numel == 0) return;
  const Places from(format, part, const_cast<std::uint8_t*>(bytes.const_data_ptr<std::uint8_t>()));
  const int width = format.width();
  const float lowest = -static_cast<float>(1 << (width - 1));
  at::parallel_for(0, part.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin / kGrain * kGrain; at < end; at += kGrain) {
      if (at < begin) continue;
      const std::int64_t stop = std::min(at + kGrain, part.numel);
      std::uint8_t codes[kGrain];
      unpack(width, at, stop, from.codes, codes);
      const bool plain = values.scalar_type() == at::kFloat;
      const at::Tensor wide = plain ? values.narrow(0, at, stop - at) : host_empty({stop - at}, at::kFloat);
      auto* out = wide.mutable_data_ptr<float>();
      for_each_group(format, part, at, stop, [&](std::int64_t group, std::int64_t first, std::int64_t until) {
        const float scale = load(from.scales, group), zero = zero_point(format, from.zero_points, group);
        for (std::int64_t i = first; i < until; ++i) {
          out[i - at] = (static_cast<float>(codes[i - at]) + lowest - zero) * scale;
        }
      });
      if (!plain) values.narrow(0, at, stop - at).copy_(wide);
    }
  });
}

}  // namespace capstan

#include "plugins/optimizers/onebit/compressed_all_reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "capstan/sdk/share.hpp"
#include "plugins/optimizers/onebit/compression_kernels.hpp"
#include "plugins/optimizers/onebit/units.hpp"

namespace capstan::optimizers {
namespace {

/// The root mean square: what one sign stands for.
float scale_of(double squares, std::size_t count) {
  return count == 0 ? 0.0f : static_cast<float>(std::sqrt(squares / static_cast<double>(count)));
}

/// Replaces `values` by what scale * sign misses, and packs the signs with padding up to `share` elements. What is not
/// finite must not stay: it would never leave again.
void compress_share(float* values, std::size_t count, std::size_t share, float scale, std::uint8_t* signs) {
  std::fill(signs + count / 8, signs + share / 8, std::uint8_t{0xff});
  for_units(count, [&](std::size_t begin, std::size_t end) {
    compress_signs(values + begin, end - begin, scale, signs + begin / 8);
  });
  if (!std::isfinite(scale)) std::fill(values, values + count, 0.0f);
}

}  // namespace

CompressedAllReduce::CompressedAllReduce(std::size_t rank, std::size_t world_size, std::span<const std::size_t> lengths)
    : rank_(rank), world_size_(world_size) {
  for (const std::size_t length : lengths) {
    Buffer buffer;
    buffer.offset = worker_size_;
    buffer.count = length;
    buffer.share = static_cast<std::size_t>(
        sdk::share_of(static_cast<std::int64_t>(length), static_cast<std::int64_t>(world_size)));
    buffer.server_offset = server_size_;
    worker_size_ += buffer.count;
    server_size_ += buffer.share;
    buffers_.push_back(buffer);
  }
}

std::size_t CompressedAllReduce::served(const Buffer& buffer, std::size_t rank) const {
  const std::size_t begin = rank * buffer.share;
  return begin < buffer.count ? std::min(buffer.share, buffer.count - begin) : 0;
}

void CompressedAllReduce::lay_out(std::span<const std::size_t> active) {
  sign_bytes_ = 0;
  for (std::size_t i = 0; i < active.size(); ++i) {
    Buffer& buffer = buffers_[active[i]];
    buffer.index = i;
    buffer.bytes_at = sign_bytes_;
    sign_bytes_ += buffer.share / 8;
  }
  message_bytes_ = sign_bytes_ + active.size() * sizeof(float);
  out_.resize(message_bytes_ * world_size_);
  in_.resize(out_.size());
  served_.resize(message_bytes_);
  gathered_.resize(out_.size());
}

std::uint8_t* CompressedAllReduce::signs_to(std::size_t rank, const Buffer& buffer) {
  return out_.data() + rank * message_bytes_ + buffer.bytes_at;
}

float CompressedAllReduce::scale_in(const std::vector<std::uint8_t>& messages, std::size_t rank,
                                    const Buffer& buffer) const {
  float scale = 0;
  std::memcpy(&scale, messages.data() + rank * message_bytes_ + sign_bytes_ + buffer.index * sizeof scale,
              sizeof scale);
  return scale;
}

void CompressedAllReduce::put_scale(std::uint8_t* message, const Buffer& buffer, float scale) const {
  std::memcpy(message + sign_bytes_ + buffer.index * sizeof scale, &scale, sizeof scale);
}

void CompressedAllReduce::compress(std::span<const std::size_t> active, std::span<const double> squares,
                                   float* worker_error) {
  for (const std::size_t index : active) {
    const Buffer& buffer = buffers_[index];
    const float scale = scale_of(squares[index], buffer.count);
    for (std::size_t to = 0; to < world_size_; ++to) {
      compress_share(worker_error + buffer.offset + to * buffer.share, served(buffer, to), buffer.share, scale,
                     signs_to(to, buffer));
      put_scale(out_.data() + to * message_bytes_, buffer, scale);
    }
  }
}

void CompressedAllReduce::serve(std::span<const std::size_t> active, float* server_error) {
  std::vector<const std::uint8_t*> signs(world_size_);
  std::vector<float> scales(world_size_);
  for (const std::size_t index : active) {
    const Buffer& buffer = buffers_[index];
    for (std::size_t from = 0; from < world_size_; ++from) {
      signs[from] = in_.data() + from * message_bytes_ + buffer.bytes_at;
      scales[from] = scale_in(in_, from, buffer) / static_cast<float>(world_size_);
    }
    float* error = server_error + buffer.server_offset;
    const std::size_t count = served(buffer, rank_);
    const double squares = sum_units(count, [&](std::size_t begin, std::size_t end) {
      std::vector<const std::uint8_t*> from(signs);
      for (const std::uint8_t*& bytes : from) bytes += begin / 8;
      return add_signs_and_measure(from, scales, error + begin, end - begin);
    });
    const float scale = scale_of(squares, count);
    compress_share(error, count, buffer.share, scale, served_.data() + buffer.bytes_at);
    put_scale(served_.data(), buffer, scale);
  }
}

void CompressedAllReduce::exchange(const sdk::Collectives& collectives, std::span<const std::size_t> active,
                                   std::span<const double> squares, float* worker_error, float* server_error) {
  lay_out(active);
  if (active.empty()) return;
  compress(active, squares, worker_error);
  collectives.all_to_all<std::uint8_t>(out_, in_);
  serve(active, server_error);
  collectives.all_gather<std::uint8_t>(served_, gathered_);
  payload_bytes_ += 2 * (world_size_ - 1) * message_bytes_;
}

void CompressedAllReduce::exchange(const sdk::Collectives& collectives, std::span<const double> squares,
                                   float* worker_error, float* server_error) {
  std::vector<std::size_t> all(buffers_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  exchange(collectives, all, squares, worker_error, server_error);
}

void CompressedAllReduce::average(std::size_t index, std::size_t begin, std::size_t count, float* out) const {
  const Buffer& buffer = buffers_[index];
  const std::size_t end = begin + count;
  for (std::size_t at = begin; at < end;) {
    const std::size_t from = at / buffer.share;
    const std::size_t inside = at - from * buffer.share;
    const std::uint8_t* signs = gathered_.data() + from * message_bytes_ + buffer.bytes_at;
    const float scale = scale_in(gathered_, from, buffer);
    // Signs are expanded from whole bytes on.
    if (inside % 8 != 0) {
      const std::size_t head = std::min(8 - inside % 8, end - at);
      float byte[8];
      expand_signs(signs + inside / 8, scale, byte, 8);
      std::copy_n(byte + inside % 8, head, out);
      at += head;
      out += head;
      continue;
    }
    const std::size_t part = std::min(buffer.share - inside, end - at);
    for_units(part, [&](std::size_t first, std::size_t last) {
      expand_signs(signs + (inside + first) / 8, scale, out + first, last - first);
    });
    at += part;
    out += part;
  }
}

void CompressedAllReduce::all_reduce(const sdk::Collectives& collectives, std::span<float> values, float* worker_error,
                                     float* server_error) {
  const double squares = sum_units(values.size(), [&](std::size_t begin, std::size_t end) {
    return add_and_measure(values.data() + begin, 1.0f, worker_error + begin, end - begin);
  });
  exchange(collectives, std::span<const double>(&squares, 1), worker_error, server_error);
  average(0, 0, values.size(), values.data());
}

}  // namespace capstan::optimizers

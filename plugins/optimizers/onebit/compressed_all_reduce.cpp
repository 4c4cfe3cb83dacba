#include "plugins/optimizers/onebit/compressed_all_reduce.hpp"

#include <algorithm>
#include <numeric>

#include "capstan/sdk/share.hpp"

namespace capstan::optimizers {

CompressedAllReduce::CompressedAllReduce(Device& device, std::size_t rank, std::size_t world_size,
                                         std::span<const std::size_t> lengths, Over over)
    : device_(&device), rank_(rank), world_size_(world_size), over_(over) {
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
  served_squares_ = device.array<double>(buffers_.size());
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
  if (out_.size() == message_bytes_ * world_size_) return;
  out_ = device_->array<std::uint8_t>(message_bytes_ * world_size_);
  in_ = device_->array<std::uint8_t>(out_.size());
  served_ = device_->array<std::uint8_t>(message_bytes_);
  gathered_ = device_->array<std::uint8_t>(out_.size());
}

void CompressedAllReduce::compress(std::span<const std::size_t> active, const double* squares, float* worker_error) {
  std::vector<OutgoingShare> shares;
  for (const std::size_t index : active) {
    const Buffer& buffer = buffers_[index];
    for (std::size_t to = 0; to < world_size_; ++to) {
      std::uint8_t* message = out_.data() + to * message_bytes_;
      shares.push_back({worker_error + buffer.offset + to * buffer.share, served(buffer, to), buffer.share,
                        squares + index, buffer.count, signs_in(message, buffer), scale_in(message, buffer)});
    }
  }
  device_->kernels().compress(shares);
}

void CompressedAllReduce::serve(std::span<const std::size_t> active, float* server_error) {
  std::vector<ArrivedShare> arrived;
  std::vector<OutgoingShare> leaving;
  for (const std::size_t index : active) {
    const Buffer& buffer = buffers_[index];
    float* error = server_error + buffer.server_offset;
    double* squares = served_squares_.data() + index;
    const std::size_t count = served(buffer, rank_);
    arrived.push_back({signs_in(in_.data(), buffer), scale_in(in_.data(), buffer), message_bytes_, world_size_, error,
                       count, squares});
    leaving.push_back({error, count, buffer.share, squares, count, signs_in(served_.data(), buffer),
                       scale_in(served_.data(), buffer)});
  }
  device_->kernels().serve(arrived);
  device_->kernels().compress(leaving);
}

void CompressedAllReduce::all_to_all(const sdk::Collectives& collectives) {
  if (over_ == Over::kDevice) return collectives.on(device_->place()).all_to_all<std::uint8_t>(out_.span(), in_.span());
  std::vector<std::uint8_t> out(out_.size()), in(in_.size());
  device_->kernels().download(out_.data(), out.size(), out.data());
  collectives.all_to_all<std::uint8_t>(out, in);
  device_->kernels().upload(in.data(), in.size(), in_.data());
}

void CompressedAllReduce::all_gather(const sdk::Collectives& collectives) {
  if (over_ == Over::kDevice) {
    return collectives.on(device_->place()).all_gather<std::uint8_t>(served_.span(), gathered_.span());
  }
  std::vector<std::uint8_t> own(served_.size()), all(gathered_.size());
  device_->kernels().download(served_.data(), own.size(), own.data());
  collectives.all_gather<std::uint8_t>(own, all);
  device_->kernels().upload(all.data(), all.size(), gathered_.data());
}

void CompressedAllReduce::exchange(const sdk::Collectives& collectives, std::span<const std::size_t> active,
                                   const double* squares, float* worker_error, float* server_error) {
  lay_out(active);
  if (active.empty()) return;
  compress(active, squares, worker_error);
  all_to_all(collectives);
  serve(active, server_error);
  all_gather(collectives);
  payload_bytes_ += 2 * (world_size_ - 1) * message_bytes_;
}

void CompressedAllReduce::exchange(const sdk::Collectives& collectives, const double* squares, float* worker_error,
                                   float* server_error) {
  std::vector<std::size_t> all(buffers_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  exchange(collectives, all, squares, worker_error, server_error);
}

void CompressedAllReduce::average(std::size_t index, std::size_t begin, std::size_t count, float* out) const {
  const Buffer& buffer = buffers_[index];
  device_->kernels().expand(
      {signs_in(gathered_.data(), buffer), scale_in(gathered_.data(), buffer), message_bytes_, buffer.share}, begin,
      count, out);
}

void CompressedAllReduce::all_reduce(const sdk::Collectives& collectives, std::span<float> values, float* worker_error,
                                     float* server_error) {
  const sdk::Array<double> squares = device_->array<double>(1);
  device_->kernels().zero(squares.data(), sizeof(double));
  device_->kernels().add_gradient({values.data()}, 1.0f, worker_error, values.size(), squares.data());
  exchange(collectives, squares.data(), worker_error, server_error);
  average(0, 0, values.size(), values.data());
}

}  // namespace capstan::optimizers

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "capstan/sdk/collectives.hpp"
#include "plugins/optimizers/onebit/device.hpp"

namespace capstan::optimizers {

/// Averages buffers over ranks at one bit an element, keeping on each rank what the bits miss and adding it to the
/// next call's values (1-bit Adam, Tang et al. 2021). Any number of buffers travels in one all-to-all and one
/// all-gather; the result of each is that of an exchange by itself. All arrays are in the device's memory.
///
/// A buffer of n elements is cut into one share a rank, the padding after its last element counts for nothing.
class CompressedAllReduce {
 public:
  enum class Over {
    kDevice,  // messages travel from where they are
    kHost     // messages travel from host memory, whatever the device
  };

  /// Buffers of these lengths, which stand one after the other in `worker_error`. `device` must live as long.
  CompressedAllReduce(Device& device, std::size_t rank, std::size_t world_size, std::span<const std::size_t> lengths,
                      Over over = Over::kDevice);

  std::size_t buffers() const { return buffers_.size(); }
  /// Where a buffer begins in the worker's errors.
  std::size_t offset(std::size_t buffer) const { return buffers_[buffer].offset; }
  std::size_t worker_error_size() const { return worker_size_; }
  std::size_t server_error_size() const { return server_size_; }

  /// On entry `worker_error` holds value + error, and `squares` the sum of squares of each buffer; afterwards the
  /// errors of this call. Only the buffers listed in `active` take part, the same on all ranks; errors of the others
  /// stay. A buffer that is not finite somewhere gives NaN everywhere and leaves the errors' last state, without the
  /// value, to nobody: they restart at zero.
  void exchange(const sdk::Collectives& collectives, std::span<const std::size_t> active, const double* squares,
                float* worker_error, float* server_error);
  /// All buffers.
  void exchange(const sdk::Collectives& collectives, const double* squares, float* worker_error, float* server_error);
  /// Elements [begin, begin + count) of a buffer's average, after an exchange that it took part in.
  void average(std::size_t buffer, std::size_t begin, std::size_t count, float* out) const;

  /// The whole exchange on ready values, with one buffer: `values` become their average over the ranks.
  void all_reduce(const sdk::Collectives& collectives, std::span<float> values, float* worker_error,
                  float* server_error);

  /// What this rank has sent to others so far: signs and scales.
  std::uint64_t payload_bytes() const { return payload_bytes_; }

 private:
  struct Buffer {
    std::size_t offset = 0;         // where its elements begin in the worker's errors
    std::size_t count = 0;          // elements
    std::size_t share = 0;          // elements that one rank serves, padding included
    std::size_t server_offset = 0;  // where its share begins in the server's errors
    std::size_t bytes_at = 0;       // where its signs began in a message of the last exchange
    std::size_t index = 0;          // among the buffers of the last exchange
  };

  /// Real elements of the share that `rank` serves.
  std::size_t served(const Buffer& buffer, std::size_t rank) const;
  void lay_out(std::span<const std::size_t> active);
  void compress(std::span<const std::size_t> active, const double* squares, float* worker_error);
  void serve(std::span<const std::size_t> active, float* server_error);
  void all_to_all(const sdk::Collectives& collectives);
  void all_gather(const sdk::Collectives& collectives);

  /// Where a buffer's signs and scale are in a message.
  std::uint8_t* signs_in(std::uint8_t* message, const Buffer& buffer) const { return message + buffer.bytes_at; }
  std::uint8_t* scale_in(std::uint8_t* message, const Buffer& buffer) const {
    return message + sign_bytes_ + buffer.index * sizeof(float);
  }

  Device* device_;
  std::size_t rank_, world_size_;
  Over over_;
  std::size_t worker_size_ = 0, server_size_ = 0;
  std::vector<Buffer> buffers_;
  std::size_t sign_bytes_ = 0;     // bytes of signs in a message, before the scales
  std::size_t message_bytes_ = 0;  // signs of one share of each buffer, then a scale of each
  sdk::Array<std::uint8_t> out_, in_, served_, gathered_;
  sdk::Array<double> served_squares_;
  std::uint64_t payload_bytes_ = 0;
};

}  // namespace capstan::optimizers

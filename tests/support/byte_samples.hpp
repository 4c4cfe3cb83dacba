#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/data/batch_order.hpp"

namespace capstan::testing {

/// The bytes of a file as samples of `sequence` tokens, read without a plugin: sample i is bytes [i*T, i*T + T + 1).
class ByteSamples {
 public:
  ByteSamples(const std::filesystem::path& path, std::int64_t sequence) : sequence_(sequence) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }

  std::int64_t samples() const { return (static_cast<std::int64_t>(bytes_.size()) - 1) / sequence_; }

  /// Rows `first`, `first` + 1, ... of the order.
  Batch batch(const BatchOrder& order, std::int64_t first, std::int64_t rows) const {
    std::vector<std::int64_t> samples;
    for (std::int64_t row = 0; row < rows; ++row) samples.push_back(order.sample(first + row));
    return batch(samples);
  }

  Batch batch(const std::vector<std::int64_t>& samples) const {
    Batch batch;
    const auto rows = static_cast<std::int64_t>(samples.size());
    for (const auto& [name, shift] : {std::pair("input_ids", 0), std::pair("labels", 1)}) {
      at::Tensor tokens = at::empty({rows, sequence_}, at::kLong);
      auto* out = tokens.mutable_data_ptr<std::int64_t>();
      for (const std::int64_t sample : samples) {
        const std::int64_t begin = sample * sequence_ + shift;
        for (std::int64_t i = 0; i < sequence_; ++i) {
          *out++ = static_cast<unsigned char>(bytes_[static_cast<std::size_t>(begin + i)]);
        }
      }
      batch.tensors.emplace(name, std::move(tokens));
    }
    return batch;
  }

 private:
  std::string bytes_;
  std::int64_t sequence_;
};

}  // namespace capstan::testing

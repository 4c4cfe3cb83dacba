#pragma once

#include <torch/torch.h>

#include <string_view>

#include "core/model/batch.hpp"

namespace capstan::testing {

/// Rows `first`, `first` + 1, ... of `text` cut into sequences: the bytes, and the bytes that follow them.
inline Batch token_batch(std::string_view text, std::int64_t first, std::int64_t rows, std::int64_t sequence) {
  Batch batch;
  const auto inputs = torch::empty({rows, sequence}, torch::kLong);
  const auto labels = torch::empty({rows, sequence}, torch::kLong);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t t = 0; t < sequence; ++t) {
      const auto at = static_cast<std::size_t>((first + row) * sequence + t);
      inputs[row][t] = static_cast<std::int64_t>(static_cast<unsigned char>(text[at]));
      labels[row][t] = static_cast<std::int64_t>(static_cast<unsigned char>(text[at + 1]));
    }
  }
  batch.tensors = {{"input_ids", inputs}, {"labels", labels}};
  return batch;
}

}  // namespace capstan::testing
